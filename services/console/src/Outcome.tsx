/** What comes of a task that makes a recording: how far it is, then the recording, or why there is none. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { goingOn, useTask } from "./tasks";
import type { Task } from "./types";
import { Progress, When } from "./ui";

export function Outcome({ id, onDone }: { readonly id: string; readonly onDone: () => void }) {
  const loaded = useTask(id);
  const state = loaded.data?.state;
  useEffect(() => {
    if (state === "done") {
      onDone();
    }
  }, [state]);
  return <When loaded={loaded}>{(task) => <Ended task={task} />}</When>;
}

function Ended({ task }: { readonly task: Task }): ComponentChildren {
  if (goingOn(task.state)) {
    return <Progress of={task} />;
  }
  return task.state === "done" ? (
    <>
      <p role="status">{task.result?.recording} is in the library.</p>
      <pre class="small soft" tabIndex={0} aria-label="What came of each file">
        {task.result?.notes}
      </pre>
    </>
  ) : (
    <p class="sev page">It has {task.state === "failed" ? `failed: ${task.error ?? ""}` : "been cancelled"}</p>
  );
}
