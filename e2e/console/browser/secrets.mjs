// Writes what every page has into a file, so that secrets can be looked for: node secrets.mjs BASE TOKEN FILE
import { writeFileSync } from "node:fs";
import { checks, open, places } from "./browser.mjs";

const [base, token, file] = process.argv.slice(2);
const { check, end } = checks();
const { browser, context, page, problems, at } = await open(base, token);
const texts = [];

try {
  page.on("console", (m) => texts.push(m.text()));
  // Every answer that a page gets: what is not shown may still be there.
  page.on("response", async (r) => {
    if (!/stream/.test(r.url())) texts.push(r.url(), await r.text().catch(() => ""));
  });
  await at("/");
  await page.locator(".tile").first().waitFor();
  const read = (path) => page.evaluate(async (p) => (await fetch(`api/v1${p}`)).json(), path);
  // The message was refused once, so that there is a cause to show.
  for (let i = 0; i < 60 && !(await read("/outbox/hooks/messages")).messages?.[0]; i++) await page.waitForTimeout(1000);
  const pages = await places(read);
  for (const [name, path] of Object.entries(pages)) {
    await at(path);
    await page.waitForFunction(() => document.querySelector("main h1") && !/Reading /.test(document.querySelector("main").textContent));
    texts.push(page.url(), await page.title(), await page.content());
    check(true, name);
  }
  check("message" in pages && "settings" in pages && "job" in pages, `pages: ${Object.keys(pages).join(" ")}`);
  texts.push(await page.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage, cookies: document.cookie })));
  const cookies = await context.cookies();
  check(cookies.length === 1 && cookies[0].httpOnly, "the session is a cookie that no script reads");
  writeFileSync(`${file}.cookie`, cookies[0]?.value ?? "");
  writeFileSync(file, texts.join("\n"));
} catch (error) {
  check(false, String(error));
}
await end(browser, problems);
