/** What a recording's telemetry can show, fault by fault, and what to add to see the rest. */
import { ask, path, useLoaded } from "./api";
import { href } from "./route";
import { Table, type Column } from "./Table";
import type { Coverage } from "./types";
import { When } from "./ui";
import { percent } from "./units";

const VERDICTS: Readonly<Record<Coverage["faults"][number]["verdict"], readonly [colour: string, mark: string, words: string]>> = {
  sees: ["good", "✓", "yes"],
  less: ["info", "○", "less surely"],
  late: ["warn", "●", "late"],
  partly: ["warn", "●", "partly"],
  blind: ["page", "✕", "blind"],
  off: ["", "–", "switched off"],
  undeclared: ["", "?", "not declared"],
};
/** A share from which on it is all. */
const ALL = 0.995;
/** The interval for which detectors promise their delays. */
const USUAL_S = 5;

export function CoveragePage({ name }: { readonly name: string }) {
  const loaded = useLoaded(name, () => ask<Coverage>(path("recordings", name, "coverage")));
  return (
    <>
      <p class="small">
        <a href={href("library")}>◂ Library</a>
      </p>
      <h1>What the telemetry of {name} can show</h1>
      <When loaded={loaded}>
        {(found) => (
          <>
            <Matrix of={found} />
            <Additions of={found} />
          </>
        )}
      </When>
    </>
  );
}

type Fault = Coverage["faults"][number];

const COLUMNS: readonly Column<Fault>[] = [
  { name: "fault", by: (one) => one.fault, cell: (one) => <span class="nowrap">{one.fault}</span> },
  {
    name: "seen",
    by: (one) => Object.keys(VERDICTS).indexOf(one.verdict),
    text: (one) => VERDICTS[one.verdict][2],
    cell: ({ verdict }) => {
      const [colour, mark, words] = VERDICTS[verdict];
      return (
        <span class={colour === "" ? "soft nowrap" : `sev ${colour}`}>
          <span aria-hidden="true">{mark}</span> {words}
        </span>
      );
    },
  },
  {
    name: "within",
    num: true,
    by: (one) => one.levels[0]?.within_s ?? null,
    text: () => "",
    cell: (one) => one.levels.map((level) => <div key={level.rung}>{level.within_s} s</div>),
  },
  {
    name: "what can be detected",
    by: (one) => one.levels.map((level) => level.sees).join(" ") + one.lacks.join(" "),
    cell: (one) => (
      <>
        {one.levels.map((level) => (
          <div key={level.rung}>
            {level.sees} {level.share < ALL && <span class="soft">({percent(level.share)} of it)</span>}
          </div>
        ))}
        {one.verdict === "partly" && <div class="soft">nothing on {percent(one.blind_share)}</div>}
        {one.verdict === "blind" && <div>needs {one.lacks.join(", ")}</div>}
      </>
    ),
  },
];

function Matrix({ of }: { readonly of: Coverage }) {
  const slow = Object.entries(of.intervals_s).filter(([, every]) => every > USUAL_S);
  return (
    <section class="panel" aria-label="Faults">
      <Table id="faults" rows={of.faults} columns={COLUMNS} keyOf={(one) => one.fault} />
      {slow.length > 0 && (
        <p class="small soft">
          The delays are for readings every {USUAL_S} s; here {slow.map(([kind, every]) => `${kind} every ${every} s`).join(", ")}: later by some readings.
        </p>
      )}
      {of.inferred_jobs && <p class="small soft">Nobody names the jobs: they are found by GPUs that work in step, minutes after their start.</p>}
    </section>
  );
}

function Additions({ of }: { readonly of: Coverage }) {
  return of.additions.length === 0 ? null : (
    <section class="panel" aria-label="What would show more">
      <h2>What would show more, or sooner</h2>
      <ul class="feed">
        {of.additions.map((one) => (
          <li key={one.needs.join()}>
            <strong class="mono">{one.needs.map((need) => need.replace(/^dcgm\./, "")).join(", ")}</strong>
            <div class="small soft">from {one.from.join("; ")}</div>
            {one.gives.map((gain) => (
              <div key={gain.fault} class="small">
                {gain.fault} within {gain.within_s} s: {gain.sees}
              </div>
            ))}
          </li>
        ))}
      </ul>
      {of.csv.length > 0 && (
        <>
          <h3>Lines for dcgm-exporter's CSV (its option -f)</h3>
          <pre class="scroll small" tabIndex={0} aria-label="Lines for dcgm-exporter">
            {of.csv.join("\n")}
          </pre>
        </>
      )}
    </section>
  );
}
