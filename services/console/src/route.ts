/** The address names the page and the moment: #/run/ID?t=2024-04-01T09:30:16.000Z&gpu=v002/3. */
import { useEffect, useState } from "preact/hooks";

export interface Route {
  readonly page: string;
  readonly path: readonly string[];
  readonly query: Readonly<Record<string, string>>;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/").map(decode);
  return { page, path: rest, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** A broken escape in a link that somebody typed is taken as it stands. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(page: string, path: readonly string[] = [], query: Readonly<Record<string, string>> = {}): string {
  const search = new URLSearchParams(query).toString();
  return `#/${[page, ...path].map(encodeURIComponent).join("/")}${search === "" ? "" : `?${search}`}`;
}

export function go(to: string): void {
  location.hash = to;
}

/** Change what the address says of this page without a step in the browser's history. */
export function replaceQuery(changes: Readonly<Record<string, string | null>>): void {
  const route = parseRoute(location.hash);
  const query: Record<string, string> = {};
  for (const [name, value] of Object.entries({ ...route.query, ...changes })) {
    if (value !== null) {
      query[name] = value;
    }
  }
  const to = href(route.page, route.path, query);
  if (to !== location.hash) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
