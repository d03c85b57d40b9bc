/** How long is waited for anything: what is there sooner is taken sooner, whatever the machine. */
export const PATIENCE_MS = 300_000;
