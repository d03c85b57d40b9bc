import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The API serves what is built here, so the wheel and the image need no Node.
export default defineConfig({
  base: "./",
  plugins: [preact()],
  build: {
    outDir: "../api/static",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    // Nothing is inlined as data: a strict content security policy needs no exception.
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8600" } },
});
