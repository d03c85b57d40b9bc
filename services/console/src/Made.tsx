/** Tasks of one kind that were asked for before, and one of them as it goes on. */
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { Operators } from "./Me";
import { go, href } from "./route";
import { Table, type Column } from "./Table";
import { goingOn, useTask } from "./tasks";
import { parse } from "./time";
import type { Page, Task } from "./types";
import { Moment, Progress, Trouble, When } from "./ui";

interface MadeProps {
  readonly page: string;
  readonly kind: Task["kind"];
  readonly subject: (task: Task) => string;
}

const AGAIN_MS = 3000;

export function Made({ page, kind, subject }: MadeProps) {
  const made = useLoaded(kind, () => ask<Page<Task>>("tasks", { kind, limit: 100 }));
  const { data, again } = made;
  useEffect(() => {
    if (data === null || !data.items.some(({ state }) => goingOn(state))) {
      return undefined;
    }
    const timer = setTimeout(again, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [data, again]);
  return (
    <When loaded={made}>
      {({ items }) => <Before page={page} items={items} subject={subject} />}
    </When>
  );
}

interface BeforeProps<Item> {
  readonly page: string;
  readonly items: readonly Item[];
  readonly subject: (item: Item) => string;
}

/** What was asked for on a page before: where it stands, and since when. */
export function Before<Item extends Pick<Task, "id" | "created_at"> & { readonly state: string }>({ page, items, subject }: BeforeProps<Item>) {
  const columns: readonly Column<Item>[] = [
    { name: "of", by: subject, cell: (one) => <a href={href(page, [one.id])}>{subject(one)}</a> },
    { name: "state", by: (one) => one.state },
    { name: "asked for", by: (one) => one.created_at, cell: (one) => <Moment at={parse(one.created_at)} withDay /> },
  ];
  return items.length === 0 ? (
    <p class="soft">None has been made yet.</p>
  ) : (
    <section class="panel" aria-label="Made before">
      <h2>Made before</h2>
      <Table id="made" rows={items} columns={columns} keyOf={({ id }) => id} />
    </section>
  );
}

/** What starts a task from a form, and goes to its page; why it could not, and whether it is on its way. */
export function useStart(page: string) {
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const start = (event: Event, address: string, body: unknown) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    send<Task>(address, body)
      .then(
        (task) => go(href(page, [task.id])),
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => setBusy(false));
  };
  return { start, error, busy };
}

interface OneProps {
  readonly id: string;
  readonly page: string;
  /** What the page of all is called. */
  readonly name: string;
  readonly title: (task: Task) => string;
  readonly children: (task: Task) => ComponentChildren;
}

/** A task by its id: how far it is, why it has failed, and what came of it. */
export function One({ id, page, name, title, children }: OneProps) {
  const loaded = useTask(id);
  const [error, setError] = useState<Error | null>(null);
  const cancel = () => send<Task>(path("tasks", id, "cancel"), {}).then(loaded.again, (reason: unknown) => setError(reason as Error));
  return (
    <>
      <p class="small">
        <a href={href(page)}>◂ {name}</a>
      </p>
      {error !== null && <Trouble error={error} />}
      <When loaded={loaded}>
        {(task) => (
          <>
            <h1>{title(task)}</h1>
            {goingOn(task.state) && (
              <Progress of={task}>
                <Operators>
                  <button type="button" onClick={() => void cancel()}>
                    Cancel
                  </button>
                </Operators>
              </Progress>
            )}
            {task.state === "failed" && <p class="sev page">It has failed: {task.error}</p>}
            {task.state === "cancelled" && <p>It was cancelled.</p>}
            {task.state === "done" && children(task)}
          </>
        )}
      </When>
    </>
  );
}

/** The recordings that a task was asked for. */
export function recordingsOf({ asked }: Task): readonly string[] {
  return Array.isArray(asked["recordings"]) ? asked["recordings"].map(String) : [];
}

/** Recordings as words: all of a few, the number of many. */
export function several(names: readonly string[]): string {
  return names.length > 3 ? `${names.length} recordings` : names.join(", ");
}
