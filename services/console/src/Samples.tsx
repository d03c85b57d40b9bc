/** Sample incidents: the scenarios that come with hindcast, and recordings made of them here. */
import { useEffect, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { Operators } from "./Me";
import { href, useRoute } from "./route";
import { AS_WRITTEN, firstSentence, lastOfEach, madeOf, makeRequest } from "./samples";
import { Table, type Column } from "./Table";
import { goingOn, useTask } from "./tasks";
import { span } from "./time";
import type { Page, Scenario, Task } from "./types";
import { Faults, Progress, Story, Trouble, When } from "./ui";

interface Props {
  /** Names of the recordings that there are. */
  readonly there: ReadonlySet<string>;
  readonly onMade: () => void;
  readonly onRun: (recording: string) => void;
}

async function load() {
  const [scenarios, made] = await Promise.all([ask<readonly Scenario[]>("scenarios"), ask<Page<Task>>("tasks", { kind: "make", limit: 200 })]);
  return { scenarios, last: lastOfEach(made.items) };
}

export function Samples({ there, onMade, onRun }: Props) {
  const { query } = useRoute();
  const loaded = useLoaded("samples", load);
  const [open, setOpen] = useState(there.size === 0);
  const linked = ["samples", "sort-samples", "find-samples"].some((name) => name in query);
  const making = [...(loaded.data?.last.values() ?? [])].some(({ state }) => goingOn(state));
  useEffect(() => {
    if (linked || making) {
      setOpen(true);
    }
  }, [linked, making]);
  const over = () => {
    loaded.again();
    onMade();
  };
  return (
    <section class="panel" aria-label="Sample incidents">
      <details open={open} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
        <summary>
          <h2 class="inline">Sample incidents</h2>{" "}
          <span class="soft">{loaded.data !== null && `${loaded.data.scenarios.length} that a recording can be made of here`}</span>
        </summary>
        {open && (
          <When loaded={loaded}>
            {({ scenarios, last }) => (
              <Table
                id="samples"
                rows={scenarios}
                keyOf={({ name }) => name}
                columns={columnsOf((one) => (
                  <Sample one={one} last={last.get(one.name)} there={there} onAsked={loaded.again} onOver={over} onRun={onRun} />
                ))}
              />
            )}
          </When>
        )}
      </details>
    </section>
  );
}

function columnsOf(cell: Column<Scenario>["cell"]): readonly Column<Scenario>[] {
  return [
    { name: "incident", by: ({ title }) => title, text: ({ title, name, summary }) => `${title} ${name} ${summary}`, ...(cell !== undefined && { cell }) },
    { name: "length", num: true, by: ({ duration_s }) => duration_s, text: () => "", cell: ({ duration_s }) => span(duration_s * 1000) },
    { name: "nodes", num: true, by: ({ cluster }) => cluster.nodes, text: () => "" },
    {
      name: "GPUs",
      num: true,
      by: ({ cluster }) => cluster.gpus,
      text: ({ cluster }) => cluster.gpu_model,
      cell: ({ cluster }) => (
        <>
          {cluster.gpus}{" "}
          <div class="small soft wrap">{cluster.gpu_model}</div>
        </>
      ),
    },
    { name: "faults", by: ({ faults }) => faults.join(" "), cell: ({ faults }) => <Faults of={faults} none="none: nothing is wrong" /> },
    { name: "from", by: ({ source }) => String(source["document"]), cell: ({ source }) => <span class="small">{String(source["document"])}</span> },
    { name: "making takes", num: true, by: ({ making_s }) => making_s, text: () => "", cell: ({ making_s }) => `about ${span(Math.ceil(making_s) * 1000).replace(".0", "")}` },
  ];
}

interface SampleProps {
  readonly one: Scenario;
  readonly last: Task | undefined;
  readonly there: ReadonlySet<string>;
  readonly onAsked: () => void;
  readonly onOver: () => void;
  readonly onRun: (recording: string) => void;
}

function Sample({ one, last, there, onAsked, onOver, onRun }: SampleProps) {
  const [choosing, setChoosing] = useState(false);
  const [wanted, setWanted] = useState(AS_WRITTEN);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const going = last !== undefined && goingOn(last.state);
  const make = (event: Event) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    send<Task>(path("scenarios", one.name, "make"), makeRequest(wanted))
      .then(onAsked, (reason: unknown) => setError(reason as Error))
      .finally(() => setBusy(false));
  };
  return (
    <div role="group" aria-label={one.title}>
      <strong>{one.title}</strong>
      <div class="small soft mono">{one.name}</div>
      <Story text={one.summary} first={firstSentence(one.summary)} />
      {madeOf(one, last, there).map((name) => (
        <div class="row actions" key={name}>
          <span class="small">
            In the library: <span class="mono">{name}</span>
          </span>
          <a class="button" href={href("library", [name])} aria-label={`Open ${name}`}>
            Open
          </a>
          <Operators>
            <button type="button" class="main" aria-label={`Replay ${name}`} onClick={() => onRun(name)}>
              Replay
            </button>
          </Operators>
        </div>
      ))}
      <Operators>
        {going ? (
          <Making id={last.id} onOver={onOver} />
        ) : (
          <form onSubmit={make}>
            <div class="row actions">
              {(one.recording === null || choosing) && (
                <button type="submit" class={one.recording === null ? "main" : ""} disabled={busy}>
                  Make
                </button>
              )}
              <button type="button" aria-expanded={choosing} onClick={() => setChoosing(!choosing)}>
                {one.recording === null ? "Options…" : "Make another…"}
              </button>
            </div>
            {choosing && (
              <div class="row choices">
                <label>
                  <span class="soft">seed </span>
                  <input type="number" step="1" placeholder={String(one.seed)} value={wanted.seed} onInput={({ currentTarget: { value } }) => setWanted({ ...wanted, seed: value })} />
                </label>
                <label>
                  <span class="soft">scale </span>
                  <input type="number" step="any" placeholder="1" value={wanted.scale} onInput={({ currentTarget: { value } }) => setWanted({ ...wanted, scale: value })} />
                </label>
                <label>
                  <span class="soft">world </span>
                  <input type="number" step="1" placeholder="none" value={wanted.world} onInput={({ currentTarget: { value } }) => setWanted({ ...wanted, world: value })} />
                </label>
                <label>
                  <input type="checkbox" checked={wanted.overwrite} onChange={({ currentTarget: { checked } }) => setWanted({ ...wanted, overwrite: checked })} />
                  <span class="soft"> replace one that is there</span>
                </label>
                <p class="small soft">Seed: another case of the same. Scale: nodes, times {one.cluster.nodes}. World: what else is usual on a cluster, by number.</p>
              </div>
            )}
          </form>
        )}
      </Operators>
      {last?.state === "failed" && <p class="sev page">It has failed: {last.error}</p>}
      {error !== null && <Trouble error={error} />}
    </div>
  );
}

/** A task that makes a recording: how far it is, and how to end it. */
function Making({ id, onOver }: { readonly id: string; readonly onOver: () => void }) {
  const loaded = useTask(id);
  const [error, setError] = useState<Error | null>(null);
  const over = loaded.data !== null && !goingOn(loaded.data.state);
  useEffect(() => {
    if (over) {
      onOver();
    }
  }, [over]);
  const cancel = () => send<Task>(path("tasks", id, "cancel"), {}).then(loaded.again, (reason: unknown) => setError(reason as Error));
  return (
    <>
      {error !== null && <Trouble error={error} />}
      <When loaded={loaded}>
        {(task) => (
          <Progress of={task}>
            <button type="button" onClick={() => void cancel()}>
              Cancel
            </button>
          </Progress>
        )}
      </When>
    </>
  );
}
