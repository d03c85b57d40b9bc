/** The time around a finding of a live cluster as a recording: from half an hour before it until half an hour after. */
import { useState } from "preact/hooks";
import { send } from "./api";
import { around } from "./cut";
import { Outcome } from "./Outcome";
import { href } from "./route";
import { rfc3339 } from "./time";
import type { Finding, Task } from "./types";
import { Trouble } from "./ui";

interface Props {
  readonly source: string;
  readonly finding: Finding;
  /** Up to here the cluster was read. */
  readonly known: number;
}

export function CutOut({ source, finding, known }: Props) {
  const [task, setTask] = useState<string | null>(null);
  const [done, setDone] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const { from, to, name } = around(finding, known);
  const begin = () => {
    setError(null);
    send<Task>("captures", { source, name, from: rfc3339(from), to: rfc3339(to) }).then(
      (made) => setTask(made.id),
      (reason: unknown) => setError(reason as Error),
    );
  };
  return (
    <>
      <button type="button" onClick={begin} disabled={task !== null}>
        Cut it into a recording
      </button>{" "}
      <span class="small soft">
        {name}, {Math.round((to - from) / 60_000)} minutes: to run detectors on, and for its postmortem
      </span>
      {task !== null && <Outcome id={task} onDone={() => setDone(true)} />}
      {done && (
        <p>
          <a href={href("library")}>Run the detectors on it</a>
        </p>
      )}
      {error !== null && <Trouble error={error} />}
    </>
  );
}
