// A program with its own login and a history that grows: node own.mjs BASE
// It says "in" on standard output when it wants to be let in, and "grow" when it wants more events.
import { once } from "node:events";
import { createInterface } from "node:readline";
import { checks, open } from "./browser.mjs";

const [base] = process.argv.slice(2);
const answers = createInterface({ input: process.stdin });
const { check, end } = checks();
const { browser, page, problems, at } = await open(base, "");
const act = async (what) => {
  console.log(what);
  await once(answers, "line");
};

try {
  // The login of the program has expired: the page says so and waits. Here half a minute passes at once.
  let calls = 0;
  page.on("request", (r) => { if (r.url().includes("/api/v1/") && !r.url().endsWith("/test")) calls++; });
  await page.clock.install();
  await at("/");
  await page.locator(".problem", { hasText: "log in again" }).first().waitFor();
  for (let i = 0; i < 20; i++) await page.evaluate(() => fetch("api/v1/test"));
  check(calls < 10 && (await page.locator(".login").count()) === 0, `without a login, the page makes ${calls} calls and asks for no token`);
  await act("in");
  await page.clock.runFor(30_000);
  await page.locator(".stream-state.live").waitFor();
  await page.locator(".tile").first().waitFor();
  check(true, "and goes on after the login");

  // Keyed units have pages of their own.
  await page.locator("#attention a", { hasText: "acme:tenants~globex eu" }).first().click();
  await page.locator("h1", { hasText: "acme:tenants~globex eu" }).waitFor();
  check(true, "what needs attention leads to the unit of a key");
  await at("/events?kind=operator.*");
  await page.locator("tbody a", { hasText: /^acme:tenants~globex eu$/ }).first().click();
  await page.locator("h1", { hasText: "acme:tenants~globex eu" }).waitFor();
  check(true, "and so does a command");

  // Many new events that a filter does not select hide none that it does.
  await at("/events?kind=leader.*");
  await page.locator("tbody tr", { hasText: "leader.elected" }).first().waitFor();
  check((await page.locator("tbody tr").count()) === 1, "one leader was elected");
  await act("grow");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 2);
  check(true, "the next one is among many other events");
} catch (error) {
  check(false, String(error));
  console.log((await page.locator("body").innerText().catch(() => "")).slice(0, 2000));
}
answers.close();
await end(browser, problems);
