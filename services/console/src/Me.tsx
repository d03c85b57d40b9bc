/** Who looks at this, and whether they may change anything: a viewer is shown no control that would be refused. */
import { createContext, type ComponentChildren } from "preact";
import { useContext } from "preact/hooks";

export interface Me {
  readonly name: string;
  readonly role: "viewer" | "operator";
  readonly authentication: boolean;
}

/** Null until it is known. */
export const MeContext = createContext<Me | null>(null);

export function useMayChange(): boolean {
  return useContext(MeContext)?.role === "operator";
}

export function Operators({ children }: { readonly children: ComponentChildren }) {
  return useMayChange() ? <>{children}</> : null;
}
