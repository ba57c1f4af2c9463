// What people do with the console, in a real browser: node scenario.mjs BASE LEADER
// It says "kill" on standard output when it wants the leader killed, and goes on when it gets a line.
import { createInterface } from "node:readline";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { accessibility, checks, open, overflow } from "./browser.mjs";

const [base, leader] = process.argv.slice(2);
const answers = createInterface({ input: process.stdin });
const { check, end } = checks();
const { browser, page, problems, at } = await open(base, "");
const text = (selector) => page.locator(selector).first().innerText();
const settled = () => page.waitForFunction(() => document.querySelector("main h1") && !/Reading /.test(document.querySelector("main").textContent));

try {
  // The cluster is there, with a unit that crashes in a loop: it is the first thing to see.
  await at("/");
  await page.locator("#attention li", { hasText: "acme:broken" }).first().waitFor();
  check(true, "the crash loop needs attention");
  check((await text(".tile:has(h3:text-is('Leader')) .value")) === leader, `the leader is ${leader}`);
  await page.locator(".heat .cell").nth(2).waitFor();

  // The last hour is measured by all three nodes. Every value has a unit.
  const heartbeats = () => page.evaluate(async () => {
    const { nodes, missing, trends } = await (await fetch("api/v1/trends")).json();
    return { nodes, missing, points: (trends.find((t) => t.name === "heartbeat.duration")?.points ?? []).map((v, i) => [i, v]).filter(([, v]) => v !== null).length };
  });
  const until = async (what, wanted) => {
    for (let i = 0; i < 60; i++) {
      const seen = await what();
      if (wanted(seen)) return seen;
      await page.waitForTimeout(1000);
    }
    throw new Error(`not seen: ${wanted}`);
  };
  const measured = await until(heartbeats, (h) => h.nodes === 3 && h.points > 0);
  await page.locator(".lines svg").first().waitFor();
  // The first measurement may come before any unit runs: a scale from 0 to 0 has no label at its top.
  const values = (await page.locator(".lines .legend li, .lines .scale span").allInnerTexts()).filter((v, i, all) => v.trim() !== "" || !/^0 /.test(all[i + 1]));
  check(values.length > 6 && values.every((v) => /(–|\d (µs|ms|s|min|h|units?|nodes?|min \d+ s)|: 0 ms)$/.test(v.trim())), `what was measured has units: ${values.join(" | ")}`);

  // Who kills the leader sees the next term appear, without touching the page.
  const term = Number(/term (\d+)/.exec(await text(".tile:has(h3:text-is('Leader')) .more"))[1]);
  console.log("kill");
  await once(answers, "line");
  await page.locator(".tile:has(h3:text-is('Leader')) .more", { hasText: new RegExp(`term ${term + 1}\\b`) }).waitFor();
  const next = await text(".tile:has(h3:text-is('Leader')) .value");
  check(next !== leader, `${next} leads the next term`);
  await page.locator(".timeline .legend a", { hasText: next }).first().waitFor();
  check((await page.locator(".timeline .lead").count()) === 2, "the timeline has both terms");
  await at("/events?kind=leader.elected"); // the newest of all kinds, on the overview, may be later ones by now
  await page.locator("tbody tr", { hasText: "leader.elected" }).filter({ hasText: next }).first().waitFor();
  check(true, "the election is among the events");

  // What the dead leader has measured is still there.
  const later = await until(heartbeats, (h) => h.nodes === 2 || h.missing.length === 1);
  check(later.points >= measured.points, `the hour survives the leader: ${measured.points} steps before, ${later.points} after`);

  // Every page, in both themes: readable for everybody, nothing cut.
  const pages = ["/", "/nodes", `/nodes/${next}`, "/daemons", "/daemons?as=units", "/daemons/acme:mail", "/units/acme:mail%2F0", "/leader", "/locks", "/queues", "/outbox", "/events", "/events/1", "/commands", "/settings"];
  for (const theme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: theme });
    for (const path of pages) {
      await at(path);
      await settled();
      const wrong = [...(await accessibility(page)), ...(await overflow(page))];
      check(wrong.length === 0, `${theme} ${path}: ${wrong.join("; ") || "accessible"}`);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 390, height: 844 });
  for (const path of pages) {
    await at(path);
    await settled();
    const wrong = await overflow(page);
    check(wrong.length === 0, `phone ${path}: ${wrong.join("; ") || "fits"}`);
  }
  await page.setViewportSize({ width: 1280, height: 900 });

  // Paused, nothing changes; then it goes on. The theme has three states, and the keys are listed.
  await page.keyboard.press("p");
  await page.locator(".banner", { hasText: "Paused" }).waitFor();
  check((await text(".stream-state")).includes("paused"), "p pauses");
  await page.keyboard.press("p");
  await page.locator(".stream-state.live").waitFor();
  check(true, "and goes on");
  for (const want of ["light", "dark", "system"]) {
    await page.keyboard.press("t");
    check((await page.evaluate(() => document.documentElement.dataset.theme)) === want, `t: the theme is ${want}`);
  }
  await page.keyboard.press("?");
  await page.locator("dialog h2", { hasText: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });

  // Keys, filter and export.
  await at("/");
  await settled();
  await page.keyboard.press("g");
  await page.keyboard.press("n");
  await page.locator("h1", { hasText: "Nodes" }).waitFor();
  await page.locator("tbody a").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type(next);
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  check(page.url().endsWith(`q=${next}`), "the filter is in the URL");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "CSV" }).click()]);
  const csv = readFileSync(await file.path(), "utf8").trim().split("\r\n");
  check(csv.length === 2 && csv[1].startsWith(next), `the export has the row of the filter: ${csv[1]}`);

  // The output of a command is text, whatever it contains.
  await at("/units/acme:mail%2F0");
  await page.locator(".output", { hasText: "<b>begin</b>" }).waitFor();
  check((await page.locator(".output b").count()) === 0, "output is shown as text");

  // A drain takes three clicks, shows its effect in numbers first, and is carried out.
  await at("/");
  await page.locator(".heat a", { hasText: next }).click();
  await page.getByRole("button", { name: "Drain …" }).click();
  await page.locator("dialog .effect strong").waitFor();
  check(/\d+ units? moves?: .*|No unit moves/.test(await text("dialog .effect strong")), `the dry run says: ${await text("dialog .effect strong")}`);
  const dialog = await accessibility(page);
  check(dialog.length === 0, `the dialog: ${dialog.join("; ") || "accessible"}`);
  await page.getByLabel("Reason").fill("kernel patch");
  await page.locator("dialog").getByRole("button", { name: `Drain ${next}` }).click();
  await page.locator("dialog .outcome").waitFor();
  await page.locator("dialog").getByRole("button", { name: "Close" }).click();
  await page.locator(".orders li", { hasText: "kernel patch" }).waitFor();
  check(true, "the node is drained, and the reason is shown");
  await at("/events?kind=operator.*");
  await page.locator("tbody tr", { hasText: "kernel patch" }).first().waitFor();
  check(true, "the history has the command");

  // Two operators at once: the other one lets the leader resign while this one has the dialog open.
  await at("/leader");
  await page.getByRole("button", { name: "Resign …" }).click();
  await page.locator("dialog .effect").waitFor();
  await page.evaluate(async () => {
    const answer = await fetch("api/v1/commands", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ kind: "leader.resign", reason: "by somebody else" }) });
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  });
  await until(() => page.evaluate(async () => (await (await fetch("api/v1/leader")).json()).leader?.term_ordinal ?? 0), (n) => n > term + 1);
  await page.locator("dialog").getByRole("button", { name: /^Let .* resign$/ }).click();
  await page.locator("dialog .problem", { hasText: "E2110" }).waitFor();
  check(true, `who comes second is told: ${(await text("dialog .problem")).replace(/\s+/g, " ")}`);
  await page.locator("dialog").getByRole("button", { name: "Cancel" }).click();
} catch (error) {
  check(false, String(error));
  console.log((await page.locator("main").innerText().catch(() => "")).slice(0, 4000));
}
await end(browser, problems);
