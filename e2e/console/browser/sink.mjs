// A sink that goes down and comes back: node sink.mjs BASE TOKEN
// It says "down", "up" and "publish" on standard output, and goes on when it gets a line.
import { createInterface } from "node:readline";
import { once } from "node:events";
import { checks, open } from "./browser.mjs";

const [base, token] = process.argv.slice(2);
const answers = createInterface({ input: process.stdin });
const { check, end } = checks();
const { browser, page, problems, at } = await open(base, token);
const say = async (word) => {
  console.log(word);
  await once(answers, "line");
};

try {
  await at("/outbox/hooks");
  await page.locator("h1 .state", { hasText: "running" }).waitFor();
  await say("down");
  await say("publish");
  await page.locator("h1 .state", { hasText: "sink down" }).waitFor();
  check(true, "the subscription says that its sink is down");
  await page.locator("td .error").first().waitFor();
  check(true, `and why: ${await page.locator("td .error").first().innerText()}`);
  await at("/");
  await page.locator("#attention li", { hasText: "the sink is down" }).locator("a", { hasText: "outbox hooks" }).click();
  await page.locator("h1", { hasText: "hooks" }).waitFor();
  check(true, "what needs attention leads to it");
  await say("up");
  await page.locator("h1 .state", { hasText: "running" }).waitFor();
  await page.locator(".facts div", { hasText: "Pending" }).locator("dd", { hasText: /^0$/ }).waitFor();
  check(true, "it comes back, and everything is delivered");
  await at("/");
  await page.locator(".tile", { hasText: "Outbox" }).waitFor();
  await page.waitForFunction(() => !/the sink is down/.test(document.querySelector("#attention")?.textContent ?? ""));
  check(true, "and nothing of it needs attention any more");
} catch (error) {
  check(false, String(error));
  console.log((await page.locator("main").innerText().catch(() => "")).slice(0, 3000));
}
await end(browser, problems);
