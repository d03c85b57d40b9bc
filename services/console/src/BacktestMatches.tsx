/** Each ticket or label and what answered it; what is wrong is corrected in its row, and all is counted again. */
import { useState } from "preact/hooks";
import { path } from "./api";
import { apart } from "./backtestRequest";
import { useStart } from "./Made";
import { useMayChange } from "./Me";
import { Table, type Column } from "./Table";
import { parse } from "./time";
import { words, type Assumed, type Backtest, type Match, type Task } from "./types";
import { Moment, Trouble } from "./ui";

const VERDICTS: Readonly<Record<Match["verdict"], readonly [colour: string, mark: string]>> = {
  caught: ["sev good", "✓"],
  missed: ["sev page", "✕"],
  unclear: ["sev warn", "●"],
  outside: ["soft", "–"],
  "not required": ["soft", "–"],
};

/** A ticket or label, with its match of each that looked. */
interface Row {
  readonly number: number;
  readonly first: Match;
  readonly matches: readonly (Match | undefined)[];
}

/** All that looked have the same tickets in the same order. */
function rowsOf({ subjects }: Backtest): readonly Row[] {
  return (subjects[0]?.matches ?? []).map((first, number) => ({ number, first, matches: subjects.map(({ matches }) => matches[number]) }));
}

function Answered({ match }: { readonly match: Match | undefined }) {
  if (match === undefined) {
    return null;
  }
  const { verdict, how, alert, against_s: against } = match;
  const [colour, mark] = VERDICTS[verdict];
  return (
    <>
      <span class={colour}>
        <span aria-hidden="true">{mark}</span> {verdict}
      </span>
      {against !== null && <span class="small nowrap"> {apart(against)}</span>}
      {alert !== null && (
        <div class="small" title={alert.summary}>
          {alert.detector} <span class="soft">{words(alert.entity)}</span>
        </div>
      )}
      {how !== "" && how !== "label" && <div class="small soft">{how.startsWith("time") ? `by ${how}` : how}</div>}
    </>
  );
}

export function Matches({ task, of }: { readonly task: Task; readonly of: Backtest }) {
  const before = task.asked["corrections"] as Readonly<Record<string, string>>;
  const [corrections, setCorrections] = useState<Readonly<Record<string, string>>>({});
  const [assumed, setAssumed] = useState(of.assumptions);
  const { start, error, busy } = useStart("backtest");
  const mayChange = useMayChange();
  const tickets = of.truth === "tickets";
  const columns: readonly Column<Row>[] = [
    {
      name: tickets ? "ticket" : "label",
      by: ({ first }) => (tickets ? first.ticket : first.fault),
      text: ({ first }) => `${first.ticket} ${first.words} ${words(first.entity)} ${first.fault}`,
      cell: ({ first }) => (
        <div style="min-width:9rem">
          <strong>{tickets ? first.ticket : first.fault}</strong> <span class="soft small">{tickets ? words(first.entity) : `${words(first.entity)}, ${first.ticket}`}</span>
          <div class="small">{first.words.slice(0, 160)}</div>
        </div>
      ),
    },
    { name: tickets ? "opened" : "onset", by: ({ first }) => first.at, cell: ({ first }) => <Moment at={parse(first.at)} withDay /> },
    ...of.subjects.map(({ name }, place): Column<Row> => ({ name, by: ({ matches }) => matches[place]?.verdict ?? null, cell: ({ matches }) => <Answered match={matches[place]} /> })),
  ];
  const correct: Column<Row> = {
    name: "correct",
    by: ({ first }) => before[first.ticket] ?? "",
    cell: ({ first: { ticket } }) => (
      <input size={18} aria-label={`Correct ${ticket}`} value={corrections[ticket] ?? before[ticket] ?? ""} onInput={(event) => setCorrections({ ...corrections, [ticket]: event.currentTarget.value })} />
    ),
  };
  const rows = rowsOf(of);
  const correctable = mayChange && tickets && rows.length > 0;
  const changed = Object.keys(corrections).length > 0 || ASSUMED.some(([name]) => assumed[name] !== of.assumptions[name]);
  return (
    <>
      {rows.length > 0 && (
        <section class="panel" aria-label="Matches">
          <h2>Each {tickets ? "ticket" : "label"}, and what answered</h2>
          {correctable && (
            <p class="small soft">
              Where a match is wrong, write a fault (<code>gpu_lost</code>), a place (<code>node=v041,gpu=3</code>), both with a space between, or <code>none</code> for what no telemetry could have shown.
            </p>
          )}
          <Table id="matches" rows={rows} columns={correctable ? [...columns, correct] : columns} keyOf={({ number }) => String(number)} most={MOST} />
          {rows.length > MOST && <p class="small soft">At most {MOST} of the {rows.length} are shown: name what you look for above them, or download the matches.</p>}
        </section>
      )}
      {mayChange && of.subjects.some((one) => one.known) && (
        <form class="panel" aria-label="Count again" onSubmit={(event) => start(event, path("backtests", task.id, "again"), { corrections, assumptions: assumed })}>
          <details>
            <summary>What GPU-hours are counted by</summary>
            <div class="row choices" style="margin-bottom:.6rem">
              {ASSUMED.map(([name, what]) => (
                <label key={name}>
                  <span class="soft">{what} </span>
                  <input type="number" required min="0" max="1000000" step="any" value={assumed[name]} onInput={(event) => setAssumed({ ...assumed, [name]: event.currentTarget.valueAsNumber })} />
                </label>
              ))}
            </div>
          </details>
          <div class="row">
            <button type="submit" class="main" disabled={busy || !changed}>
              Count again
            </button>
            <span class="small soft">{correctable ? "With the corrections above, and these assumptions." : "With other assumptions."} Nothing is looked at anew.</span>
          </div>
          {error !== null && <Trouble error={error} />}
        </form>
      )}
    </>
  );
}

const MOST = 500;
const ASSUMED: readonly (readonly [name: keyof Assumed, what: string])[] = [
  ["checkpoint_min", "minutes between a job's checkpoints"],
  ["restart_min", "minutes until a stopped job works again"],
  ["reaction_min", "minutes until an alert is acted on"],
  ["repair_h", "hours that a drained node is away"],
  ["spares", "idle nodes that can take another's place"],
];
