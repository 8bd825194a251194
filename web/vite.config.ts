import { readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

// `npm run dev` with BATUTA_URL=http://127.0.0.1:PORT talks to a running server.
const server = process.env["BATUTA_URL"];

/** The font's licence asks to travel with it. */
const fontLicence: Plugin = {
  name: "font-licence",
  generateBundle() {
    const source = readFileSync("node_modules/@fontsource-variable/inter/LICENSE", "utf-8");
    this.emitFile({ type: "asset", fileName: "licenses-inter.txt", source });
  },
};

export default defineConfig({
  plugins: [svelte(), fontLicence],
  // Relative addresses: the pages work below any path. Nothing is inlined, so that `default-src 'self'` is enough.
  base: "./",
  build: {
    outDir: "../src/batuta/api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    // Those that know light-dark(), which carries both themes.
    cssTarget: ["chrome123", "firefox128", "safari17.5"],
    rolldownOptions: { checks: { pluginTimings: false } },
    license: { fileName: "licenses.md" },
  },
  ...(server ? { server: { proxy: { "/api": { target: server, changeOrigin: true } } } } : {}),
});
