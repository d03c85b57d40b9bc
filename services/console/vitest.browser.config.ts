import { defineConfig } from "vitest/config";
import { PATIENCE_MS } from "./browser/patience";

// What a person does, in a real browser, against the real API: `npm run test:browser`.
// A hook may start all the servers, which takes minutes on a machine that is busy.
export default defineConfig({
  test: { include: ["browser/*.browser.ts"], testTimeout: 900_000, hookTimeout: 900_000, expect: { poll: { timeout: PATIENCE_MS } } },
});
