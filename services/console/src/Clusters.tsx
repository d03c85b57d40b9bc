/** Live clusters that `hindcast live` watches: what is wrong there now, and what was. */
import { useEffect } from "preact/hooks";
import { all, ask, path, useLoaded } from "./api";
import { calmOf } from "./calm";
import { CutOut } from "./CutOut";
import { Actions, Handle } from "./Handle";
import { Judge } from "./Judge";
import { useMayChange } from "./Me";
import { parse, span } from "./time";
import { Table, type Column } from "./Table";
import { words, type Finding, type Run } from "./types";
import { Moment, Sev, weight } from "./ui";

interface Cluster {
  readonly run: Run;
  readonly findings: readonly Finding[];
  /** What a stretch of it can be captured from. */
  readonly source: string | null;
}

async function load(): Promise<readonly Cluster[]> {
  const runs = (await all<Run>("runs", { replay: "live" })).filter((run) => run.state === "running");
  const sources = runs.length === 0 ? [] : await ask<readonly { readonly name: string }[]>("sources");
  return Promise.all(
    runs.map(async (run) => ({
      run,
      findings: await all<Finding>(`${path("runs", run.id)}/findings`),
      source: sources.find((one) => one.name === run.recording)?.name ?? null,
    })),
  );
}

const AGAIN_MS = 5000;
const MOST = 50;

export function Clusters() {
  const { data, again } = useLoaded("clusters", load);
  useEffect(() => {
    const timer = setTimeout(again, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [data, again]);
  return <>{data?.map((one) => <Watched key={one.run.id} {...one} again={again} />)}</>;
}

interface Shown extends Cluster {
  readonly again: () => void;
}

function Watched({ findings, ...more }: Shown) {
  const { run } = more;
  const telling = findings.filter((one) => one.severity !== "info");
  const open = telling.filter((one) => one.state === "firing").toReversed();
  const over = telling.filter((one) => one.state === "resolved").toReversed();
  return (
    <section class="panel" aria-label={run.recording}>
      <div class="row spread">
        <h2>
          {run.recording.replace(/^live-/, "")} <span class="tag">live</span>
        </h2>
        {run.event_time !== null && (
          <span class="small soft">
            read up to <Moment at={parse(run.event_time)} withDay />
          </span>
        )}
      </div>
      {run.error !== null && <p role="alert">{run.error}; nothing is concluded from that, it is asked again.</p>}
      {open.length === 0 ? <p>{calmOf(run)}</p> : <Findings id={`open-${run.recording}`} findings={open} {...more} />}
      {over.length > 0 && (
        <details>
          <summary class="soft">Over: {over.length}</summary>
          <Findings id={`over-${run.recording}`} findings={over} {...more} />
        </details>
      )}
    </section>
  );
}

function Findings({ id, run, findings, source, again }: Shown & { readonly id: string }) {
  const may = useMayChange();
  const columns: readonly Column<Finding>[] = [
    {
      name: "severity",
      by: (one) => weight(one.severity),
      text: (one) => one.severity,
      cell: (one) => (
        <>
          <Sev of={one.severity} />
          {one.shadow && <span class="tag">shadow</span>}
        </>
      ),
    },
    {
      name: "what",
      by: (one) => `${one.fault} ${words(one.entity)}`,
      text: (one) => `${one.fault} ${words(one.entity)} ${one.summary}`,
      cell: (one) => (
        <>
          <strong>{one.fault}</strong> {words(one.entity)}
          <div class="small">{one.summary}</div>
          <Actions actions={one.actions} />
          <details>
            <summary class="small soft">{may ? "Do something about it" : "Judgements"}</summary>
            {may && one.state === "firing" && <Handle finding={one} onDone={again} />}
            <Judge run={run.id} of={{ finding: one.id }} />
            {may && source !== null && run.event_time !== null && <CutOut source={source} finding={one} known={parse(run.event_time)} />}
          </details>
        </>
      ),
    },
    { name: "do", by: (one) => one.recommended_action },
    {
      name: "began",
      by: (one) => parse(one.started_at),
      text: (one) => one.started_at,
      cell: (one) => <Moment at={parse(one.started_at)} withDay />,
    },
    {
      name: "lasted",
      num: true,
      by: (one) => (one.resolved_at === null ? null : parse(one.resolved_at) - parse(one.started_at)),
      text: () => "",
      cell: (one) => (one.resolved_at === null ? "open" : span(parse(one.resolved_at) - parse(one.started_at))),
    },
  ];
  return <Table id={id} rows={findings} columns={columns} keyOf={(one) => one.id} most={MOST} />;
}
