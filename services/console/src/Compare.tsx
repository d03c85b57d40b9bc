/** Two configurations or two versions on the same recordings: caught, missed, earlier, later, false. */
import { useEffect, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { lackOf, settingsOf, shown, type Change } from "./changes";
import { Recordings } from "./Chosen";
import { loadRuns } from "./follow";
import { latestDone } from "./latest";
import { Before, several } from "./Made";
import { Operators } from "./Me";
import { moment, parse } from "./time";
import { go, href } from "./route";
import { Table, type Column } from "./Table";
import { words, type Comparison, type Detector, type Difference, type RecordingSummary, type Run, type Score } from "./types";
import { Trouble, When } from "./ui";
import { percent, seconds } from "./units";

export function ComparePage({ id }: { readonly id: string | null }) {
  return id === null ? <Overview /> : <Result key={id} id={id} />;
}

function Overview() {
  const loaded = useLoaded("compare", async () => {
    const [recordings, detectors, comparisons, runs] = await Promise.all([
      ask<readonly RecordingSummary[]>("recordings"),
      ask<readonly Detector[]>("detectors"),
      ask<readonly Comparison[]>("comparisons"),
      loadRuns(),
    ]);
    return { recordings, detectors, comparisons, latest: new Map(latestDone(runs).map((run) => [run.recording, run])) };
  });
  return (
    <>
      <h1>Compare</h1>
      <When loaded={loaded}>
        {({ recordings, detectors, comparisons, latest }) => (
          <>
            <Operators>
              <Form recordings={recordings} detectors={detectors} latest={latest} />
            </Operators>
            <Before page="compare" items={comparisons} subject={({ title, before, after, recordings: over }) => `${title === "" ? `${shown(before)} → ${shown(after)}` : title}: ${several(over)}`} />
          </>
        )}
      </When>
    </>
  );
}

const NONE: Change = { detector: "", setting: "", value: "" };

interface FormProps {
  readonly recordings: readonly RecordingSummary[];
  readonly detectors: readonly Detector[];
  /** Of each recording the last run with the detectors as they came. */
  readonly latest: ReadonlyMap<string, Run>;
}

function Form({ recordings, detectors, latest }: FormProps) {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [before, setBefore] = useState<readonly Change[]>([]);
  const [after, setAfter] = useState<readonly Change[]>([NONE]);
  const [earlier, setEarlier] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const offered = recordings.filter((one) => !earlier || latest.has(one.name));
  const asked = offered.filter((one) => chosen.has(one.name)).map((one) => one.name);
  const same = !earlier && shown(settingsOf(before, detectors)) === shown(settingsOf(after, detectors));
  const lack =
    (earlier ? null : lackOf(before, detectors)) ?? lackOf(after, detectors) ?? (same ? "First change a setting: both are the same." : asked.length === 0 ? "First choose a recording." : null);
  const begin = () => {
    setError(null);
    const first = earlier ? { before_runs: asked.flatMap((name) => latest.get(name)?.id ?? []) } : { recordings: asked, before: settingsOf(before, detectors) };
    send<Comparison>("comparisons", { ...first, after: settingsOf(after, detectors) }).then(
      (made) => go(href("compare", [made.id])),
      (reason: unknown) => setError(reason as Error),
    );
  };
  return (
    <section class="panel">
      <div class="split halves">
        <div>
          {earlier ? <h2>First: as they were</h2> : <Changes title="First: as they come, but" changes={before} set={setBefore} detectors={detectors} />}
          <label class="row" style="margin-top:.6rem">
            <input type="checkbox" checked={earlier} onChange={() => setEarlier(!earlier)} />
            <span class="small">the last run of each recording, by whichever version of hindcast made it</span>
          </label>
        </div>
        <Changes title="Second: as they come, but" changes={after} set={setAfter} detectors={detectors} />
      </div>
      <Recordings title="On these recordings" offered={offered} chosen={chosen} set={setChosen} more={(name) => earlier && <span class="soft small"> {made(latest.get(name))}</span>} />
      <div class="row">
        <button type="button" class="main" disabled={lack !== null} onClick={begin}>
          Compare
        </button>
        <span class="small soft" role="status">
          {lack}
        </span>
      </div>
      {error !== null && <Trouble error={error} />}
    </section>
  );
}

function made(run: Run | undefined): string {
  return run === undefined ? "" : `hindcast ${run.versions?.["hindcast"] ?? "of an unknown version"}, ${moment(parse(run.created_at), true)}`;
}

interface ChangesProps {
  readonly title: string;
  readonly changes: readonly Change[];
  readonly set: (changes: readonly Change[]) => void;
  readonly detectors: readonly Detector[];
}

function Changes({ title, changes, set, detectors }: ChangesProps) {
  const change = (place: number, to: Partial<Change>) => set(changes.map((one, number) => (number === place ? { ...one, ...to } : one)));
  return (
    <div>
      <h2>{title}</h2>
      {changes.map((one, place) => {
        const settings = detectors.find((detector) => detector.name === one.detector)?.settings ?? [];
        const usual = settings.find((setting) => setting.name === one.setting);
        return (
          <div class="row" key={place} style="margin-bottom:.4rem">
            <select aria-label="detector" value={one.detector} onChange={(event) => change(place, { detector: event.currentTarget.value, setting: "", value: "" })}>
              <option value="">detector…</option>
              {detectors.map((detector) => (
                <option key={detector.name}>{detector.name}</option>
              ))}
            </select>
            <select aria-label="setting" value={one.setting} onChange={(event) => change(place, { setting: event.currentTarget.value, value: "" })}>
              <option value="">setting…</option>
              <option>enabled</option>
              {settings.map((setting) => (
                <option key={setting.name}>{setting.name}</option>
              ))}
            </select>
            <input
              aria-label="value"
              size={8}
              value={one.value}
              placeholder={one.setting === "enabled" ? "true" : String(usual?.value ?? "")}
              onInput={(event) => change(place, { value: event.currentTarget.value })}
            />
            <span class="soft small">{usual?.unit}</span>
            <button type="button" aria-label="take this change out" onClick={() => set(changes.filter((_, number) => number !== place))}>
              ✕
            </button>
          </div>
        );
      })}
      <button type="button" onClick={() => set([...changes, NONE])}>
        + change
      </button>
    </div>
  );
}

const POLL_MS = 1000;

function Result({ id }: { readonly id: string }) {
  const loaded = useLoaded(id, () => ask<Comparison>(path("comparisons", id)));
  const running = loaded.data?.state === "running";
  useEffect(() => {
    if (!running) {
      return undefined;
    }
    const timer = setTimeout(loaded.again, POLL_MS);
    return () => clearTimeout(timer);
  }, [running, loaded.data, loaded.again]);
  return (
    <>
      <p class="small">
        <a href={href("compare")}>◂ Compare</a>
      </p>
      <When loaded={loaded}>{(one) => <Outcome one={one} />}</When>
    </>
  );
}

function Outcome({ one }: { readonly one: Comparison }) {
  const runs = new Map(one.recordings.map((name, place) => [name, [one.before_runs[place], one.after_runs[place]] as const]));
  return (
    <>
      <h1>{one.title === "" ? "Comparison" : one.title}</h1>
      <p>
        First: {shown(one.before)}. Second: {shown(one.after)}. {one.recordings.length} recording(s).
      </p>
      {Object.keys(one.versions).length > 0 && (
        <p>
          Versions:{" "}
          {Object.entries(one.versions)
            .map(([name, [first, second]]) => `${name} ${first} → ${second}`)
            .join(", ")}
        </p>
      )}
      {one.state === "running" && (
        <p>
          <progress max={1} value={one.progress} aria-label="How far it is" /> {percent(one.progress)}
        </p>
      )}
      {one.state === "failed" && <p class="sev page">A run of this comparison has failed.</p>}
      {one.before_score !== null && one.after_score !== null && <Scores before={one.before_score} after={one.after_score} />}
      {one.differences !== null && <Differences differences={one.differences} runs={runs} />}
    </>
  );
}

function Scores({ before, after }: { readonly before: Score; readonly after: Score }) {
  const rows: readonly (readonly [string, (score: Score) => string])[] = [
    ["labelled", (score) => String(score.labels)],
    ["found", (score) => String(score.hits)],
    ["missed", (score) => String(score.misses)],
    ["late", (score) => String(score.late)],
    ["false alarms", (score) => String(score.false_alarms)],
    ["precision", (score) => percent(score.precision)],
    ["recall", (score) => percent(score.recall)],
    ["median delay", (score) => seconds(score.delay_p50_s)],
    ["p95 delay", (score) => seconds(score.delay_p95_s)],
  ];
  return (
    <section class="panel" style="max-width:34rem">
      <table>
        <thead>
          <tr>
            <th />
            <th class="num">first</th>
            <th class="num">second</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, value]) => (
            <tr key={name}>
              <td>{name}</td>
              <td class="num">{value(before)}</td>
              <td class="num">{value(after)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const GOOD: ReadonlySet<string> = new Set(["caught", "earlier", "false alarm gone"]);

function Differences({ differences, runs }: { readonly differences: readonly Difference[]; readonly runs: ReadonlyMap<string, readonly [string | undefined, string | undefined]> }) {
  if (differences.length === 0) {
    return <p>No difference: both find the same at the same times.</p>;
  }
  const columns: readonly Column<Difference>[] = [
    {
      name: "second",
      by: (one) => one.change,
      cell: (one) => (
        <span class={`sev ${GOOD.has(one.change) ? "good" : "page"}`}>
          {GOOD.has(one.change) ? "▲" : "▼"} {one.change}
        </span>
      ),
    },
    { name: "fault", by: (one) => `${one.fault}, ${words(one.entity)}` },
    {
      name: "recording",
      by: (one) => one.recording,
      cell: (one) => {
        const [first, second] = runs.get(one.recording) ?? [];
        const run = one.after === null ? first : second;
        return run === undefined ? one.recording : <a href={href("run", [run])}>{one.recording}</a>;
      },
    },
    { name: "by", num: true, by: (one) => Math.abs(one.seconds), text: () => "", cell: (one) => (one.seconds === 0 ? "–" : seconds(Math.abs(one.seconds))) },
  ];
  return (
    <section class="panel">
      <Table id="differences" rows={differences} columns={columns} keyOf={(one) => `${one.recording} ${one.change} ${one.before} ${one.after} ${one.truth}`} />
    </section>
  );
}
