// Takes pictures of every page, in both themes and at phone width: node screenshots.mjs BASE TOKEN DIRECTORY [PAGE…]
import { mkdirSync } from "node:fs";
import { open, overflow, places } from "./browser.mjs";

/** Lets the leader resign, so that there are two terms, and a job fail for good. */
async function prepare() {
  const send = async (path, body) => {
    const answer = await fetch(base + path, { method: "POST", headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) }, body: JSON.stringify(body) });
    return answer.json();
  };
  await send("/api/v1/commands", { kind: "leader.resign", reason: "to show two terms", actor: "alice" });
  await send("/v1/queues/default/jobs", { id: "invoice-1042", type: "invoice:send", payload: { to: "a@example.org", cents: 129900 } });
  const { jobs } = await send("/v1/queues/default/claim", { types: ["invoice:send"], wait_ms: 20_000, worker: "worker-1" });
  if (jobs?.[0]) await send("/v1/queues/default/jobs/invoice-1042/fail", { token: jobs[0].token, cause: "550 no such mailbox", dead: true });
  await send("/api/v1/commands", { kind: "node.cordon", node: "dev-2", reason: "kernel patch", actor: "alice" });
}

const [base, token, directory, ...only] = process.argv.slice(2);
mkdirSync(directory, { recursive: true });
let wrong = 0;
await prepare();
for (const [name, options] of Object.entries({ light: {}, dark: { theme: "dark" }, phone: { width: 390, height: 844 } })) {
  const { browser, page, at, problems } = await open(base, token, options);
  const read = (path) => page.evaluate(async (p) => (await fetch(`api/v1${p}`)).json(), path);
  await at("/");
  await page.waitForSelector(".tile");
  const pages = await places(read);
  for (const [file, path] of Object.entries(pages)) {
    if (only.length && !only.includes(file)) continue;
    await at(path);
    await page.waitForFunction(() => document.querySelector("main h1") && !/Reading /.test(document.querySelector("main").textContent));
    if (path.startsWith("/queues/") || path.startsWith("/outbox/")) await page.waitForFunction(() => !document.querySelector(".lines p")); // the lines are drawn
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
// The picture of the README: the first screen, once there are lines to see.
if (!only.length) {
  const { browser, page, at } = await open(base, token, { width: 1280, height: 1400 });
  await at("/");
  await page.locator(".lines path.line").first().waitFor({ state: "attached" }); // a line that is level has no height, and counts as hidden
  await page.locator(".heat .cell").first().waitFor();
  const last = await page.locator(".panel", { hasText: "Units by node" }).boundingBox();
  await page.screenshot({ path: `${directory}/console.png`, clip: { x: 0, y: 0, width: 1280, height: Math.ceil(last.y + last.height) + 12 } });
  await browser.close();
}
process.exit(wrong ? 1 : 0);
