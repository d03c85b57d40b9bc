/** A history against its tickets: what would have been caught, missed and raised for nothing; matches are corrected here. */
import { useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { settingsOf, type Change } from "./changes";
import { Recordings } from "./Chosen";
import { Changes } from "./Compare";
import { Made, One, recordingsOf, several } from "./Made";
import { Operators, useMayChange } from "./Me";
import { Report } from "./Report";
import { go, href } from "./route";
import { Table, type Column } from "./Table";
import { span } from "./time";
import { words, type Backtest, type Detector, type Match, type RecordingSummary, type Source, type Subject, type Task } from "./types";
import { Trouble, When } from "./ui";

interface Props {
  readonly id: string | null;
  readonly query: Readonly<Record<string, string>>;
}

export function BacktestPage({ id, query }: Props) {
  return id === null ? (
    <>
      <h1>Backtest</h1>
      <p class="soft">What detectors and rules would have raised over a history, held against its tickets, or the recordings' labels where there are none.</p>
      <Operators>
        <Form chosen={query["recording"] === undefined ? [] : [query["recording"]]} />
      </Operators>
      <Made page="backtest" kind="backtest" subject={subject} />
    </>
  ) : (
    <One id={id} page="backtest" name="Backtests" title={subject}>
      {(task) => <Result key={task.id} task={task} />}
    </One>
  );
}

function subject({ asked, ...task }: Task): string {
  const server = asked["of"] as { readonly source: string; readonly from: string; readonly to: string } | null;
  const history = server === null ? several(recordingsOf({ asked, ...task })) : `${server.source}, ${server.from} to ${server.to}`;
  return `${history}, against ${asked["tickets"] === true ? "tickets" : "labels"}`;
}

const NONE: Change = { detector: "", setting: "", value: "" };
const DETECTORS = "the detectors as they come";

function Form({ chosen: first }: { readonly chosen: readonly string[] }) {
  const offered = useLoaded("backtest", async () => {
    const [recordings, detectors, sources] = await Promise.all([ask<readonly RecordingSummary[]>("recordings"), ask<readonly Detector[]>("detectors"), ask<readonly Source[]>("sources")]);
    return { recordings, detectors, sources };
  });
  const [source, setSource] = useState("");
  const [time, setTime] = useState({ from: "", to: "" });
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(first));
  const [tickets, setTickets] = useState("");
  const [timezone, setTimezone] = useState("UTC");
  const [changes, setChanges] = useState<readonly Change[]>([]);
  const [rules, setRules] = useState("");
  const [grid, setGrid] = useState("5");
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const begin = (event: Event) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    const changed = settingsOf(changes, offered.data?.detectors ?? []);
    const configurations = Object.keys(changed).length === 0 ? [] : [{ name: "as they come" }, { name: "changed", detectors: changed }];
    const history = source === "" ? { recordings: [...chosen] } : { of: { source, from: `${time.from}Z`, to: `${time.to}Z` } };
    send<Task>("backtests", {
      ...history,
      configurations,
      tickets: tickets === "" ? null : tickets,
      timezone,
      rules: rules === "" ? [] : [{ name: "rules", rules }],
      grid_s: Number(grid),
    })
      .then(
        (task) => go(href("backtest", [task.id])),
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => setBusy(false));
  };
  return (
    <When loaded={offered}>
      {({ recordings, detectors, sources }) => (
        <form class="panel" onSubmit={begin} aria-label="Make a backtest">
          <div class="row choices" style="margin:0">
            <label>
              <span class="soft">The history of </span>
              <select value={source} onChange={(event) => setSource(event.currentTarget.value)}>
                <option value="">recordings</option>
                {sources.map(({ name }) => (
                  <option key={name} value={name}>
                    the server {name}
                  </option>
                ))}
              </select>
            </label>
            {source !== "" &&
              (["from", "to"] as const).map((end) => (
                <label key={end}>
                  <span class="soft">{end} (UTC) </span>
                  <input type="datetime-local" step="1" required value={time[end]} onInput={(event) => setTime({ ...time, [end]: event.currentTarget.value })} />
                </label>
              ))}
            <label>
              <span class="soft">detectors decide every </span>
              <select value={grid} onChange={(event) => setGrid(event.currentTarget.value)}>
                {["5", "10", "15", "30"].map((one) => (
                  <option key={one} value={one}>
                    {one} s
                  </option>
                ))}
              </select>
            </label>
          </div>
          {source === "" && <Recordings title="These recordings" offered={recordings} chosen={chosen} set={setChosen} />}
          <Text title="Tickets as CSV" value={tickets} set={setTickets} accept=".csv" example={"id,created,resolved,host,summary\nOPS-1,2024-04-01 09:30,2024-04-01 11:00,v002,clocks dropped"} />
          <label class="row">
            <span class="soft">times without a zone are of </span>
            <input size={16} required value={timezone} onInput={(event) => setTimezone(event.currentTarget.value)} />
          </label>
          <details>
            <summary>Beside {DETECTORS}: other settings, alert rules</summary>
            <Changes title="As they come, but" changes={changes.length === 0 ? [NONE] : changes} set={setChanges} detectors={detectors} />
            <Text title="Rules as YAML" value={rules} set={setRules} accept=".yaml,.yml" example="groups: …" />
          </details>
          <button type="submit" class="main" disabled={busy || (source === "" && chosen.size === 0)}>
            Make the backtest
          </button>
          {error !== null && <Trouble error={error} />}
        </form>
      )}
    </When>
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
  return (
    <div style="margin:.6rem 0">
      <label class="row">
        <span class="soft">{title}, pasted or a file:</span>
        <input type="file" accept={accept} onChange={({ currentTarget }) => void currentTarget.files?.[0]?.text().then(set)} />
      </label>
      <textarea class="code" aria-label={title} spellcheck={false} rows={4} value={value} placeholder={example} onInput={(event) => set(event.currentTarget.value)} />
    </div>
  );
}

function Result({ task }: { readonly task: Task }) {
  const loaded = useLoaded(task.id, () => ask<Backtest>(path("backtests", task.id)));
  return (
    <When loaded={loaded}>
      {(found) => (
        <>
          <p>
            {found.from.slice(0, 16).replace("T", " ")} to {found.to.slice(0, 16).replace("T", " ")}: {found.weeks.toFixed(1)} weeks, {found.node_days.toFixed(0)} node-days.
          </p>
          <section class="panel" aria-label="Would we have caught it?">
            <h2>Would we have caught it?</h2>
            <Table rows={found.subjects} columns={SUBJECTS} keyOf={(one) => one.name} />
            {!found.subjects.every((one) => one.known) && <p class="small">What really happened is not known: give tickets, or label the recordings.</p>}
          </section>
          <Matches task={task} of={found} />
          <Report url={path("backtests", task.id, "report")} forms={FORMS} name={`backtest-${task.id}`} title="Backtest" />
        </>
      )}
    </When>
  );
}

const FORMS = [
  ["html", "HTML", "html"],
  ["json", "all figures", "json"],
  ["csv", "the matches", "csv"],
] as const;

const judged = (name: string, by: (one: Subject) => number): Column<Subject> => ({
  name,
  num: true,
  by: (one) => (one.known ? by(one) : null),
  cell: (one) => (one.known ? by(one) : "unknown"),
});

const SUBJECTS: readonly Column<Subject>[] = [
  { name: "what looks", by: (one) => one.name, cell: (one) => <strong>{one.name}</strong> },
  judged("to catch", (one) => one.caught + one.missed),
  judged("caught", (one) => one.caught),
  judged("missed", (one) => one.missed),
  judged("unclear", (one) => one.unclear),
  judged("outside", (one) => one.outside),
  judged("false alarms", (one) => one.false),
  { name: "pages a week", num: true, by: (one) => sent(one, "page"), cell: (one) => sent(one, "page").toFixed(1) },
  { name: "tickets a week", num: true, by: (one) => sent(one, "ticket"), cell: (one) => sent(one, "ticket").toFixed(1) },
];

function sent(one: Subject, kind: string): number {
  return one.sent_a_week["all"]?.[kind] ?? 0;
}

const VERDICTS: Readonly<Record<Match["verdict"], readonly [colour: string, mark: string]>> = {
  caught: ["good", "✓"],
  missed: ["page", "✕"],
  unclear: ["warn", "●"],
  outside: ["", "–"],
  "not required": ["", "–"],
};

interface Matched {
  readonly subject: string;
  readonly match: Match;
}

const MATCHES: readonly Column<Matched>[] = [
  { name: "ticket", by: ({ match }) => match.ticket },
  { name: "at", by: ({ match }) => match.at, cell: ({ match }) => <time dateTime={match.at}>{match.at.slice(0, 16).replace("T", " ")}</time> },
  { name: "by", by: (one) => one.subject },
  {
    name: "verdict",
    by: ({ match }) => match.verdict,
    cell: ({ match: { verdict, how } }) => {
      const [colour, mark] = VERDICTS[verdict];
      return (
        <>
          <span class={colour === "" ? "soft" : `sev ${colour}`}>
            <span aria-hidden="true">{mark}</span> {verdict}
          </span>
          <div class="small soft">{how}</div>
        </>
      );
    },
  },
  { name: "fault", by: ({ match }) => match.fault, cell: ({ match }) => <>{match.fault} <span class="small soft">{words(match.entity)}</span></> },
  { name: "alert", by: ({ match }) => match.alert?.summary ?? "", cell: ({ match: { alert, against_s: against } }) => alert !== null && <>{alert.detector}, {words(alert.entity)}<div class="small soft">{against !== null && `${span(Math.abs(against) * 1000)} ${against < 0 ? "before" : "after"} it`}</div></> },
  { name: "words", by: ({ match }) => match.words, cell: ({ match }) => <span class="small">{match.words.slice(0, 160)}</span> },
];

/** Matches that are wrong are corrected in their row, and all is counted again. */
function Matches({ task, of }: { readonly task: Task; readonly of: Backtest }) {
  const before = (task.asked["corrections"] ?? {}) as Readonly<Record<string, string>>;
  const [corrections, setCorrections] = useState<Readonly<Record<string, string>>>({});
  const [error, setError] = useState<Error | null>(null);
  const correctable = useMayChange() && of.truth === "tickets";
  const rows = of.subjects.flatMap((one) => one.matches.map((match) => ({ subject: one.name, match })));
  const correct: Column<Matched> = {
    name: "correct",
    by: ({ match }) => before[match.ticket] ?? "",
    cell: ({ match: { ticket } }) => (
      <input size={18} aria-label={`Correct ${ticket}`} value={corrections[ticket] ?? before[ticket] ?? ""} onInput={(event) => setCorrections({ ...corrections, [ticket]: event.currentTarget.value })} />
    ),
  };
  const again = () => {
    setError(null);
    send<Task>(path("backtests", task.id, "corrections"), { corrections }).then(
      (made) => go(href("backtest", [made.id])),
      (reason: unknown) => setError(reason as Error),
    );
  };
  return rows.length === 0 ? null : (
    <section class="panel" aria-label="Matches">
      <h2>Each {of.truth === "tickets" ? "ticket" : "label"}, and what answered</h2>
      <Table rows={rows} columns={correctable ? [...MATCHES, correct] : MATCHES} keyOf={(one) => `${one.subject} ${one.match.ticket}`} most={500} />
      {correctable && (
        <div class="row">
          <button type="button" class="main" disabled={Object.keys(corrections).length === 0} onClick={again}>
            Count again
          </button>
          <span class="small soft">
            Write a fault (<code>gpu_lost</code>), a place (<code>node=v041,gpu=3</code>), both with a space between, or <code>none</code> for what no telemetry could have shown.
          </span>
        </div>
      )}
      {error !== null && <Trouble error={error} />}
    </section>
  );
}
