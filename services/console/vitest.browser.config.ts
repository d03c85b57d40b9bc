import { defineConfig } from "vitest/config";

// What a person does, in a real browser, against the real API: `npm run test:browser`.
// A hook may start all the servers, which takes minutes on a machine that is busy.
export default defineConfig({ test: { include: ["browser/*.browser.ts"], testTimeout: 120_000, hookTimeout: 300_000 } });
