// A browser that shows the console: Chromium.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Starts the browser. The console is at base; token may be empty. */
export async function open(base, token, { width = 1280, height = 900, theme = "light" } = {}) {
  const path = [process.env.EMITD_TEST_CHROMIUM, "/usr/bin/chromium", "/usr/bin/google-chrome"].find((p) => p && existsSync(p));
  if (!path) throw new Error("Chromium is missing: make deps, or apt-get install chromium, or set EMITD_TEST_CHROMIUM to its path");
  const browser = await chromium.launch({ executablePath: path, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce", acceptDownloads: true });
  if (token) {
    const signed = await context.request.post(`${base}/api/v1/session`, { data: { token }, headers: { Origin: new URL(base).origin } });
    if (!signed.ok()) throw new Error(`cannot sign in: ${signed.status()} ${await signed.text()}`);
  }
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const problems = [];
  page.on("pageerror", (e) => problems.push(`error: ${e}`));
  page.on("console", (m) => {
    // What the network refuses is what the console shows; a violation of the policy is a bug.
    if (m.type() === "error" && !/Failed to load resource|net::ERR_/.test(m.text())) problems.push(`console: ${m.text()}`);
  });
  return { browser, context, page, problems, at: (path) => page.goto(`${base}/#${path}`) };
}

/** The pages by name: those that there is something to show on. */
export async function places(read) {
  const enc = encodeURIComponent;
  const out = { overview: "/", nodes: "/nodes", daemons: "/daemons", units: "/daemons?as=units", leader: "/leader", locks: "/locks", queues: "/queues", outbox: "/outbox", events: "/events", event: "/events/1", commands: "/commands", settings: "/settings" };
  const { events } = await read("/events?kind=assignment.assigned&limit=1"); // a decision, with what it was made from
  if (events[0]) out.event = `/events/${events[0].seq}`;
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

/** What axe finds wrong with the page. */
export async function accessibility(page) {
  // With the policy of the page, axe cannot be added as a script element.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map((v) => `${v.id} (${v.impact}): ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")}`);
}

/** What does not fit: the page is wider than the window, or a text is cut off that has no way to be seen. */
export async function overflow(page) {
  return page.evaluate(() => {
    const out = [];
    if (document.documentElement.scrollWidth > innerWidth + 1) out.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${innerWidth} px`);
    for (const e of document.querySelectorAll("button, h1, h2, .tile .more, .state, dd, li")) {
      if (e.closest(".scroll, nav, .output, .sr")) continue;
      const box = e.getBoundingClientRect();
      if (box.width && (box.right > innerWidth + 1 || box.left < -1)) out.push(`${e.tagName} ${e.className} reaches from ${box.left | 0} to ${box.right | 0}: ${e.textContent.slice(0, 60)}`);
    }
    // A table fits into a wide window; a narrow one scrolls it.
    for (const e of innerWidth > 1000 ? document.querySelectorAll(".scroll:not(.lines .scroll)") : []) {
      if (e.scrollWidth > e.clientWidth + 1) out.push(`the ${e.getAttribute("aria-label")} are ${e.scrollWidth} px wide in ${e.clientWidth} px`);
    }
    // What can be clicked lies nowhere below something else of the kind.
    const all = [...document.querySelectorAll("main button, main input, main select")].filter((e) => !e.closest(".scroll"));
    const boxes = all.map((e) => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width && b.height);
    for (const [i, [e, a]] of boxes.entries()) {
      for (const [f, b] of boxes.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 3 && high > 3) out.push(`${e.tagName} ${e.textContent} and ${f.tagName} ${f.textContent} overlap`);
      }
    }
    return out;
  });
}

/** Counts what is right and wrong, and says so. */
export function checks() {
  const begun = Date.now();
  let failures = 0;
  const check = (ok, what) => {
    console.log(`${ok ? "ok  " : "FAIL"} ${((Date.now() - begun) / 1000).toFixed(1)} s ${what}`);
    if (!ok) failures++;
  };
  const end = async (browser, problems) => {
    for (const p of problems) check(false, p);
    await browser.close();
    process.exit(failures ? 1 : 0);
  };
  return { check, end };
}
