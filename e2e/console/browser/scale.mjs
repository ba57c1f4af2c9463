// A cluster of 1,000 nodes, 10,000 units and 100,000 events: node scale.mjs BASE
import { checks, open } from "./browser.mjs";

const [base] = process.argv.slice(2);
const { check, end } = checks();
const { browser, page, problems, at } = await open(base, "");

/** The longest time in which the page could not answer, while something is done. */
async function blocked(what) {
  await page.evaluate(() => {
    window.longest = 0;
    window.watch = new PerformanceObserver((list) => {
      for (const e of list.getEntries()) window.longest = Math.max(window.longest, e.duration);
    });
    window.watch.observe({ type: "longtask" });
  });
  await what();
  return page.evaluate(() => {
    for (const e of window.watch.takeRecords()) window.longest = Math.max(window.longest, e.duration);
    window.watch.disconnect();
    return Math.round(window.longest);
  });
}

try {
  let begun = Date.now();
  await at("/");
  await page.locator(".tile", { hasText: "10,000" }).first().waitFor();
  console.log(`overview: tiles after ${Date.now() - begun} ms`);
  await page.waitForFunction(() => document.querySelectorAll(".heat .cell").length === 1000);
  console.log(`overview: 1,000 nodes after ${Date.now() - begun} ms`);
  begun = Date.now();
  await at("/daemons?as=units");
  await page.getByText("10,000 units").waitFor();
  console.log(`units: 10,000 rows after ${Date.now() - begun} ms`);
  check((await page.locator("tbody tr").count()) < 100, `the page has ${await page.locator("tbody tr").count()} of the 10,000 rows`);
  const scroll = await blocked(async () => {
    for (const f of [0.1, 0.5, 0.9, 1, 0.3, 0]) {
      await page.evaluate((f) => new Promise((done) => {
        const box = document.querySelector(".scroll");
        box.scrollTop = f * box.scrollHeight;
        requestAnimationFrame(() => requestAnimationFrame(done));
      }), f);
    }
  });
  console.log(`units: scrolling through all blocks the page for at most ${scroll} ms`);
  await page.evaluate(() => (document.querySelector(".scroll").scrollTop = 1e9));
  await page.locator("tbody tr", { hasText: "acme:daemon-099/99" }).waitFor();
  check(true, "the last row is at the end");
  const filter = await blocked(async () => {
    await page.locator("input[type=search]").fill("daemon-050/ node-0007");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length < 20);
  });
  console.log(`units: a filter blocks the page for at most ${filter} ms`);
  await at("/nodes?sort=-units");
  await page.getByText("1,000 nodes").waitFor();
  await at("/events");
  await page.locator("tbody tr").nth(20).waitFor();
  check(true, "nodes and events are listed");
} catch (error) {
  check(false, String(error));
  console.log((await page.locator("body").innerText().catch(() => "")).slice(0, 2000));
}
await end(browser, problems);
