/** Dark or light: what the system says, unless the user chose otherwise; the choice is kept in the browser. */
import { useEffect, useState } from "preact/hooks";

export type Theme = "dark" | "light";
const KEY = "hindcast.theme";

function stored(): Theme | null {
  const value = localStorage.getItem(KEY);
  return value === "dark" || value === "light" ? value : null;
}

export function useTheme(): [Theme, () => void] {
  const system = matchMedia("(prefers-color-scheme: light)");
  const [theme, setTheme] = useState<Theme>(() => stored() ?? (system.matches ? "light" : "dark"));
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  useEffect(() => {
    const changed = () => {
      if (stored() === null) {
        setTheme(system.matches ? "light" : "dark");
      }
    };
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, next);
    setTheme(next);
  };
  return [theme, toggle];
}

/** The value of a colour of theme.css, for what is drawn on a canvas. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A number that changes whenever canvases have to be drawn in other colours. */
export function useRepaint(): number {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const changed = () => setCount((before) => before + 1);
    addEventListener("themechange", changed);
    return () => removeEventListener("themechange", changed);
  }, []);
  return count;
}
