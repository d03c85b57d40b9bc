import { useEffect, useRef } from "preact/hooks";

/** Call what belongs to a key, unless the key belongs to the control that has the focus. */
export function useKeys(bindings: Readonly<Record<string, () => void>>): void {
  const latest = useRef(bindings);
  latest.current = bindings;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || taken(event)) {
        return;
      }
      const name = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
      const action = latest.current[name];
      if (action !== undefined) {
        event.preventDefault();
        action();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function taken(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  if (target.closest("input, textarea, select, dialog[open]") !== null) {
    return true;
  }
  return (event.key === " " || event.key === "Enter") && target.closest("button, a, summary") !== null;
}
