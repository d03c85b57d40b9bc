/** What takes long: asked again and again until it is over. */
import { useEffect } from "preact/hooks";
import { ask, path, useLoaded, type Loaded } from "./api";
import type { Task } from "./types";

const POLL_MS = 1000;

export function goingOn(state: Task["state"]): boolean {
  return state === "queued" || state === "running";
}

export function useTask(id: string): Loaded<Task> {
  const loaded = useLoaded(id, () => ask<Task>(path("tasks", id)));
  const going = loaded.data !== null && goingOn(loaded.data.state);
  useEffect(() => {
    if (!going) {
      return undefined;
    }
    const timer = setTimeout(loaded.again, POLL_MS);
    return () => clearTimeout(timer);
  }, [going, loaded.data, loaded.again]);
  return loaded;
}
