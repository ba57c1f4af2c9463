// Takes pictures of every page, in both themes and at phone width: node screenshots.mjs BASE TOKEN DIRECTORY [PAGE…]
import { mkdirSync } from "node:fs";
import { open, overflow } from "./browser.mjs";

const [base, token, directory, ...only] = process.argv.slice(2);
mkdirSync(directory, { recursive: true });
let wrong = 0;
for (const [name, options] of Object.entries({ light: {}, dark: { theme: "dark" }, phone: { width: 390, height: 844 } })) {
  const { browser, page, at, problems } = await open(base, token, options);
  const read = (path) => page.evaluate(async ([p, t]) => (await fetch(`api/v1${p}`, { headers: { Authorization: `Bearer ${t}` } })).json(), [path, token]);
  await at("/");
  await page.waitForSelector(".tile");
  const { nodes } = await read("/nodes?limit=1");
  const { units } = await read("/units?limit=1");
  const pages = { overview: "/", nodes: "/nodes", node: `/nodes/${nodes[0].name}`, daemons: "/daemons", daemon: `/daemons/${encodeURIComponent(units[0].daemon)}`,
    units: "/daemons?as=units", unit: `/units/${encodeURIComponent(units[0].unit)}`, leader: "/leader", events: "/events", commands: "/commands", settings: "/settings" };
  for (const [file, path] of Object.entries(pages)) {
    if (only.length && !only.includes(file)) continue;
    await at(path);
    await page.waitForFunction(() => document.querySelector("main h1") && !/Reading /.test(document.querySelector("main").textContent));
    await page.screenshot({ path: `${directory}/${file}-${name}.png`, fullPage: true });
    for (const o of await overflow(page)) {
      console.log(`${file} ${name}: ${o}`);
      wrong++;
    }
  }
  for (const p of problems) console.log(`${name}: ${p}`);
  wrong += problems.length;
  await browser.close();
}
process.exit(wrong ? 1 : 0);
