/** The API at /api/v1 of the server that this page came from. Nothing else is ever asked. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { eventsOf } from "./events";
import type { Problem } from "./types";

const BASE = new URL("api/v1/", new URL(".", location.href)).pathname;
const TOKEN = "hindcast.token";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly remedy: string,
  ) {
    super(detail);
  }
}

export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** The token lives as long as the tab: it is in no address and in no lasting storage. */
export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
  dispatchEvent(new Event("tokenchange"));
}

function headers(): Record<string, string> {
  const token = sessionStorage.getItem(TOKEN);
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

export function path(...parts: readonly string[]): string {
  return parts.map(encodeURIComponent).join("/");
}

export type Query = Readonly<Record<string, string | number | null | undefined>>;

export async function ask<T>(url: string, query: Query = {}, init: RequestInit = {}): Promise<T> {
  const response = await answer(url, query, init);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** A file, as it is. */
export async function file(url: string, query: Query = {}): Promise<Blob> {
  return (await answer(url, query, {})).blob();
}

/** Said loudly: at three in the morning nobody notices that a picture stands still. */
export const AWAY = new ApiError(0, "The hindcast server does not answer", "What is shown may be old. It is asked again by itself until it does.", "see that it runs");
const AWAY_MS = 2000;
let away = false;

function tell(now: boolean): void {
  if (now !== away) {
    away = now;
    dispatchEvent(new Event("awaychange"));
  }
}

/** Whether the server gives no answer: what is only looked at is asked for again until it does. */
export function useAway(): boolean {
  const [now, set] = useState(away);
  useEffect(() => {
    const changed = () => set(away);
    changed();
    addEventListener("awaychange", changed);
    return () => removeEventListener("awaychange", changed);
  }, []);
  return now;
}

async function answer(url: string, query: Query, init: RequestInit): Promise<Response> {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined) {
      search.set(name, String(value));
    }
  }
  const text = search.toString();
  for (;;) {
    let response: Response;
    try {
      response = await fetch(`${BASE}${url}${text === "" ? "" : `?${text}`}`, {
        ...init,
        headers: { ...headers(), ...(init.headers as Record<string, string> | undefined) },
      });
    } catch {
      tell(true);
      if (init.method !== undefined) {
        throw new ApiError(0, AWAY.title, "Nothing was changed that is known of.", "see that it runs, look what it did, and try again");
      }
      await new Promise((resolve) => setTimeout(resolve, AWAY_MS));
      continue;
    }
    tell(false);
    if (!response.ok) {
      if (response.status === 401 && url !== "me") {
        dispatchEvent(new Event("refused"));
      }
      throw await problemOf(response);
    }
    return response;
  }
}

export function send<T>(url: string, body: unknown, method = "POST"): Promise<T> {
  return ask<T>(url, {}, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

/** All items of a list, page by page, up to `most`. */
export async function all<T>(url: string, query: Readonly<Record<string, string | number>> = {}, most = 5000): Promise<T[]> {
  const items: T[] = [];
  let after: string | null = null;
  do {
    const page: { items: T[]; next: string | null } = await ask(url, { limit: 1000, ...query, after });
    items.push(...page.items);
    after = page.next;
  } while (after !== null && items.length < most);
  return items;
}

async function problemOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { title, detail, remedy } = JSON.parse(text) as Partial<Problem>;
    return new ApiError(response.status, title ?? response.statusText, detail ?? "", remedy ?? "");
  } catch {
    return new ApiError(response.status, response.statusText, text.slice(0, 300), "");
  }
}

export interface Loaded<T> {
  readonly data: T | null;
  readonly error: Error | null;
  readonly again: () => void;
}

/** Load when `key` changes; null loads nothing. What was there stays until the new is. */
export function useLoaded<T>(key: string | null, load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ data: T | null; error: Error | null; key: string | null }>({
    data: null,
    error: null,
    key: null,
  });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  const again = useCallback(() => setTurn((before) => before + 1), []);
  useEffect(() => {
    addEventListener("tokenchange", again);
    return () => removeEventListener("tokenchange", again);
  }, [again]);
  useEffect(() => {
    if (key === null) {
      return undefined;
    }
    let current = true;
    latest.current().then(
      (data) => current && setState({ data, error: null, key }),
      (error: unknown) => current && setState({ data: null, error: error as Error, key }),
    );
    return () => {
      current = false;
    };
  }, [key, turn]);
  const mine = key !== null;
  return { data: mine ? state.data : null, error: mine ? state.error : null, again };
}

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 10_000;

export interface ServerEvent {
  readonly kind: string;
  readonly body: unknown;
}

/**
 * Follow server-sent events until the server ends them (`over`, or a `replay` that is no more) or `signal` is aborted.
 * Read with fetch, as EventSource cannot send a token; a connection that breaks is taken up again after the last event
 * that came, and `lost` is told why it broke, and null when it stands.
 */
export async function follow(url: string, on: (event: ServerEvent) => void, lost: (why: ApiError | null) => void, signal: AbortSignal): Promise<void> {
  let last = "";
  let over = false;
  for (let failures = 0; ; failures += 1) {
    let why = AWAY;
    try {
      const extra: Record<string, string> = last === "" ? {} : { "Last-Event-ID": last };
      const response = await fetch(`${BASE}${url}`, { headers: { ...headers(), ...extra, Accept: "text/event-stream" }, signal });
      if (!response.ok) {
        throw await problemOf(response);
      }
      lost(null);
      for await (const one of eventsOf(response)) {
        failures = 0;
        last = one.id === "" ? last : one.id;
        const body: unknown = JSON.parse(one.data);
        over ||= one.kind === "over" || (one.kind === "replay" && body === null);
        on({ kind: one.kind, body });
      }
    } catch (error) {
      if (error instanceof ApiError) {
        if (error.status < 500) {
          throw error;
        }
        why = error;
      }
    }
    if (over || signal.aborted) {
      return;
    }
    lost(why);
    await new Promise((resolve) => setTimeout(resolve, Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** failures)));
  }
}
