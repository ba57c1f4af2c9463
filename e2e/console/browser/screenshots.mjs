// Takes pictures of every page, in both themes and at phone width: node screenshots.mjs BASE TOKEN DIRECTORY [PAGE…]
import { mkdirSync } from "node:fs";
import { open, overflow } from "./browser.mjs";

/** The pages by the names of their pictures: those that there is something to show on. */
async function places(read) {
  const enc = encodeURIComponent;
  const out = { overview: "/", nodes: "/nodes", daemons: "/daemons", units: "/daemons?as=units", leader: "/leader", queues: "/queues", outbox: "/outbox", events: "/events", event: "/events/1", commands: "/commands", settings: "/settings" };
  const { nodes } = await read("/nodes?limit=1");
  const { units } = await read("/units?limit=1000");
  const unit = units.find((u) => u.failures) ?? units[0];
  if (nodes[0]) out.node = `/nodes/${enc(nodes[0].name)}`;
  if (unit) Object.assign(out, { daemon: `/daemons/${enc(unit.daemon)}`, unit: `/units/${enc(unit.unit)}` });
  const { queues } = await read("/queues");
  for (const { queue } of queues?.queues ?? []) {
    out.queue = `/queues/${enc(queue)}`;
    for (const state of ["waiting", "delayed", "dead"]) {
      const { jobs } = await read(`/queues/${enc(queue)}/jobs?state=${state}&limit=1`);
      if (jobs?.[0]) Object.assign(out, { queue: `/queues/${enc(queue)}?state=${state}`, job: `/queues/${enc(queue)}/${enc(jobs[0].id)}` });
    }
  }
  const { outbox } = await read("/outbox");
  for (const { subscription } of outbox?.subscriptions ?? []) {
    out.subscription ??= `/outbox/${enc(subscription)}`;
    const { messages } = await read(`/outbox/${enc(subscription)}/messages?limit=1`);
    if (messages?.[0]) Object.assign(out, { subscription: `/outbox/${enc(subscription)}`, message: `/outbox/${enc(subscription)}/${messages[0].seq}` });
  }
  return out;
}

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
  await page.locator(".lines path.line").first().waitFor();
  await page.locator(".heat .cell").first().waitFor();
  const last = await page.locator(".panel", { hasText: "Units by node" }).boundingBox();
  await page.screenshot({ path: `${directory}/console.png`, clip: { x: 0, y: 0, width: 1280, height: Math.ceil(last.y + last.height) + 12 } });
  await browser.close();
}
process.exit(wrong ? 1 : 0);
