import { defineConfig } from "vitest/config";

// What a person does, in a real browser, against the real API: `npm run test:browser`.
export default defineConfig({ test: { include: ["browser/*.browser.ts"], testTimeout: 120_000, hookTimeout: 120_000 } });
