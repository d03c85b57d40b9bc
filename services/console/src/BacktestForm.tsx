/** The form of a backtest: which history, which tickets, and who looks at it. */
import { useState } from "preact/hooks";
import { ask, useLoaded } from "./api";
import { EMPTY, nameOf, requestOf, textOf, type Draft, type Named } from "./backtestRequest";
import { Recordings } from "./Chosen";
import { useStart } from "./Made";
import type { RecordingSummary, Source } from "./types";
import { Trouble, When } from "./ui";

/** What was filled in last: whoever comes back to try something else does not begin anew. */
let last = EMPTY;

const TICKETS = "id,created,resolved,host,summary\nOPS-1,2024-04-01 09:32,2024-04-01 11:00,v002,clocks dropped";
const DETECTORS = "power_throttle:\n  confirm_readings: 3";
const RULES = "groups:\n  - name: mine\n    rules:\n      - alert: GpuHot\n        expr: DCGM_FI_DEV_GPU_TEMP > 85\n        for: 1m";
const SPAN = "[1-9][0-9]{0,3}[mhd]";

export function BacktestForm({ recording }: { readonly recording: string | undefined }) {
  const offered = useLoaded("backtest", async () => {
    const [recordings, sources] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), ask<readonly Source[]>("sources")]);
    return { recordings, sources };
  });
  const [draft, setDraft] = useState<Draft>(() => (recording === undefined ? last : { ...last, source: "", recordings: [recording] }));
  const { start, error, busy } = useStart("backtest");
  const change = (changes: Partial<Draft>) => {
    last = { ...draft, ...changes };
    setDraft(last);
  };
  const taken = ["defaults", "hindcast rules", ...[...draft.configurations, ...draft.rules].map(({ name }) => name)];
  return (
    <When loaded={offered}>
      {({ recordings, sources }) => {
        const there = draft.recordings.filter((name) => recordings.some((one) => one.name === name));
        return (
          <form class="panel" onSubmit={(event) => start(event, "backtests", requestOf({ ...draft, recordings: there }))} aria-label="Make a backtest">
            <h2>The history</h2>
            {sources.length > 0 && <Server draft={draft} change={change} sources={sources} />}
            {draft.source === "" && <Recordings title="These recordings" offered={recordings} chosen={new Set(there)} set={(chosen) => change({ recordings: [...chosen] })} />}
            <h2>The tickets</h2>
            <p class="soft small">A column says when each was opened; PagerDuty's and Jira's exports are read as they are. {draft.source === "" ? "Without any, the recordings' labels count." : "A server has no labels: without tickets nobody knows what was right."}</p>
            <Text title="Tickets as CSV" value={draft.tickets} set={(tickets) => change({ tickets })} accept=".csv" example={TICKETS} />
            <div class="row choices">
              <label>
                <span class="soft">times that name no zone are of </span>
                <input size={16} required value={draft.timezone} onInput={(event) => change({ timezone: event.currentTarget.value })} />
              </label>
              <label>
                <span class="soft">a trouble begins before its ticket by up to </span>
                <input size={5} required pattern={SPAN} title="30m, 2h, 1d" value={draft.before} onInput={(event) => change({ before: event.currentTarget.value })} />
              </label>
            </div>
            <h2 style="margin-top:1rem">Who looks at it</h2>
            <div class="row choices" style="margin:0 0 .4rem">
              <label>
                <input type="checkbox" checked={draft.usual || draft.configurations.length === 0} disabled={draft.configurations.length === 0} onChange={(event) => change({ usual: event.currentTarget.checked })} /> the detectors as they come
              </label>
              <label>
                <input type="checkbox" checked={draft.ownRules} onChange={(event) => change({ ownRules: event.currentTarget.checked })} /> hindcast's alert rules
              </label>
              <label>
                <span class="soft">detectors decide every </span>
                <select value={draft.grid} onChange={(event) => change({ grid: event.currentTarget.value })}>
                  {["5", "10", "15", "30"].map((one) => (
                    <option key={one} value={one}>
                      {one} s
                    </option>
                  ))}
                </select>
              </label>
            </div>
            <Texts title="detectors.yaml" all={draft.configurations} set={(configurations) => change({ configurations })} taken={taken} example={DETECTORS} />
            <Texts title="alert rules" all={draft.rules} set={(rules) => change({ rules })} taken={taken} example={RULES} />
            <div class="row" style="margin-bottom:.6rem">
              <button type="submit" class="main" disabled={busy || (draft.source === "" && there.length === 0)}>
                Make the backtest
              </button>
              {draft.source === "" && there.length === 0 && <span class="soft small">First choose a recording.</span>}
            </div>
            {error !== null && <Trouble error={error} />}
          </form>
        );
      }}
    </When>
  );
}

interface ServerProps {
  readonly draft: Draft;
  readonly change: (changes: Partial<Draft>) => void;
  readonly sources: readonly Source[];
}

function Server({ draft, change, sources }: ServerProps) {
  return (
    <div class="row choices" style="margin:0 0 .8rem">
      <label>
        <span class="soft">of </span>
        <select value={draft.source} onChange={(event) => change({ source: event.currentTarget.value })}>
          <option value="">recordings</option>
          {sources.map(({ name }) => (
            <option key={name} value={name}>
              the server {name}
            </option>
          ))}
        </select>
      </label>
      {draft.source !== "" && (
        <>
          {(["from", "to"] as const).map((end) => (
            <label key={end}>
              <span class="soft">{end} (UTC) </span>
              <input type="datetime-local" step="1" required value={draft[end]} onInput={(event) => change({ [end]: event.currentTarget.value })} />
            </label>
          ))}
          <label>
            <span class="soft">only the cluster </span>
            <input size={12} value={draft.cluster} placeholder="any" onInput={(event) => change({ cluster: event.currentTarget.value })} />
          </label>
        </>
      )}
    </div>
  );
}

interface TextProps {
  readonly title: string;
  readonly value: string;
  readonly set: (value: string) => void;
  readonly accept: string;
  readonly example: string;
}

/** A file's text, pasted or chosen. */
function Text({ title, value, set, accept, example }: TextProps) {
  const [error, setError] = useState<Error | null>(null);
  const read = (file: File | undefined) => {
    setError(null);
    if (file !== undefined) {
      textOf(file).then(set, (reason: unknown) => setError(reason as Error));
    }
  };
  return (
    <div style="margin:.4rem 0">
      <label class="row" style="margin-bottom:.3rem">
        <span class="soft">{title}, pasted below or a file:</span>
        <input type="file" accept={accept} onChange={({ currentTarget }) => read(currentTarget.files?.[0])} />
      </label>
      <textarea class="code" aria-label={title} spellcheck={false} rows={4} value={value} placeholder={example} onInput={(event) => set(event.currentTarget.value)} />
      {error !== null && <Unread error={error} />}
    </div>
  );
}

function Unread({ error }: { readonly error: Error }) {
  return (
    <p class="sev page" role="alert" style="white-space:normal">
      {error.message}
    </p>
  );
}

interface TextsProps {
  readonly title: string;
  readonly all: readonly Named[];
  readonly set: (all: readonly Named[]) => void;
  readonly taken: readonly string[];
  readonly example: string;
}

/** Several texts, each under a name: files, or pasted. */
function Texts({ title, all, set, taken, example }: TextsProps) {
  const [error, setError] = useState<Error | null>(null);
  const add = (texts: readonly Named[]) => {
    const named: Named[] = [];
    for (const { name, text } of texts) {
      named.push({ name: nameOf(name, [...taken, ...named.map((one) => one.name)]), text });
    }
    set([...all, ...named]);
  };
  const read = (input: HTMLInputElement) => {
    setError(null);
    Promise.all([...(input.files ?? [])].map(async (file) => ({ name: file.name, text: await textOf(file) })))
      .then(add, (reason: unknown) => setError(reason as Error))
      .finally(() => {
        input.value = "";
      });
  };
  const change = (place: number, to: Partial<Named>) => set(all.map((one, number) => (number === place ? { ...one, ...to } : one)));
  return (
    <div role="group" aria-label={title} style="margin-bottom:.8rem">
      {all.map(({ name, text }, place) => (
        <div key={place} class="inset">
          <div class="row" style="margin-bottom:.4rem">
            <label>
              <span class="soft">{title} called </span>
              <input size={18} required pattern="[A-Za-z0-9][A-Za-z0-9 ._\-]*" maxLength={60} value={name} onInput={(event) => change(place, { name: event.currentTarget.value })} />
            </label>
            <button type="button" aria-label={`Take ${name} out`} onClick={() => set(all.filter((_, number) => number !== place))}>
              ✕
            </button>
          </div>
          <textarea class="code" aria-label={`${title} of ${name}`} required spellcheck={false} rows={5} value={text} placeholder={example} onInput={(event) => change(place, { text: event.currentTarget.value })} />
        </div>
      ))}
      <div class="row">
        <button type="button" onClick={() => add([{ name: title === "alert rules" ? "my rules" : "changed", text: "" }])}>
          + {title}
        </button>
        <label>
          <span class="soft">or files </span>
          <input type="file" multiple accept=".yaml,.yml" aria-label={`Files of ${title}`} onChange={({ currentTarget }) => read(currentTarget)} />
        </label>
      </div>
      {error !== null && <Unread error={error} />}
    </div>
  );
}
