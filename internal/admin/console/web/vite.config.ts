import { defineConfig } from "vite";

// The page lies at the root of what serves it, and its files below console/, with relative addresses: so it works below
// any prefix. Names without hashes keep the history of dist readable; the server sends an ETag.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "inline" },
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "console/console.js",
        chunkFileNames: "console/[name].js",
        assetFileNames: "console/[name][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:7070", "/node": "http://127.0.0.1:7070" } },
});
