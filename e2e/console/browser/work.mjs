// The token, the dead letters of a queue, and those of the outbox, in emitd dev --demo: node work.mjs BASE TOKEN
import { createServer, request } from "node:http";
import { accessibility, checks, open } from "./browser.mjs";

const [base, token] = process.argv.slice(2);
const { check, end } = checks();
const { browser, context, page, problems, at } = await open(base, "");
const queue = async (path, body) => {
  const answer = await fetch(`${base}/v1/queues/default/${path}`, { method: "POST", headers: { Authorization: `Bearer ${token}` }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
};
const dialog = page.locator("dialog");

/** Carries out the action of a button: says what its dry run says. */
async function act(button, confirm, typed) {
  await page.getByRole("button", { name: button }).click();
  await dialog.locator(".effect strong").waitFor();
  const effect = await dialog.locator(".effect strong").innerText();
  if (typed) await dialog.getByLabel(/Type/).fill(typed);
  await dialog.getByRole("button", { name: confirm }).click();
  await dialog.locator(".outcome").waitFor();
  const outcome = await dialog.locator(".outcome").innerText();
  await dialog.getByRole("button", { name: "Close" }).click();
  return `${effect} ${outcome}`;
}

try {
  // Without a token there is a form and nothing of the cluster; with a wrong one it says so.
  await at("/");
  await page.getByLabel("Token").fill("not-a-token-of-this-server");
  await page.keyboard.press("Enter");
  await page.locator(".login .error").waitFor();
  check((await page.locator(".tile").count()) === 0, `a wrong token is refused: ${await page.locator(".login .error").innerText()}`);
  check((await accessibility(page)).length === 0, "the form is accessible");
  await page.getByLabel("Token").fill(token);
  await page.keyboard.press("Enter");
  await page.locator(".tile").first().waitFor();
  check(true, "the right token shows the cluster");

  // A job fails for good, and is redriven.
  await queue("jobs", { id: "poison", type: "hostile", payload: { html: "<img src=x onerror=document.title='taken'>" } });
  const { jobs } = await queue("claim", { types: ["hostile"], wait_ms: 30_000, worker: "test" });
  await queue("jobs/poison/fail", { token: jobs[0].token, cause: "no such <b>address</b>", dead: true });
  await at("/");
  await page.locator("#attention a", { hasText: "queue default" }).click();
  check(page.url().includes("state=dead"), "what needs attention leads to the dead jobs");
  await page.locator("tbody a", { hasText: "poison" }).click();
  await page.locator("h1", { hasText: "poison" }).waitFor();
  await page.locator(".json", { hasText: "<img" }).waitFor();
  check((await page.locator("main img, main b").count()) === 0 && (await page.title()) !== "taken", "payload and cause are shown as text");
  const job = await accessibility(page);
  check(job.length === 0, `the job: ${job.join("; ") || "accessible"}`);
  check(/1 job would be waiting again/.test(await act("Redrive …", "Redrive")), "the job is redriven");
  await page.locator("h1 .state", { hasText: "waiting" }).waitFor();
  check(true, "the job is waiting again");

  // 16 MiB of markup are shown as text, and the page goes on answering.
  const markup = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>";
  await queue("jobs", { id: "huge", type: "huge", payload: markup.repeat(Math.floor((16 * 1024 * 1024 - 2) / markup.length)) });
  await at("/queues/default/huge");
  await page.locator(".json", { hasText: "<img" }).waitFor();
  await page.getByText(/The first .* of 16\.0 MiB are shown/).waitFor();
  check((await page.locator("main img, main script").count()) === 0 && (await page.title()) !== "taken", "16 MiB of markup are shown as text");
  check(/1 job would be cancelled/.test(await act("Cancel …", "Cancel the job")), "and the page answers: the job is cancelled");

  // The webhook of the demo refuses some orders for good. One is looked at, and all are purged.
  await at("/outbox/demo-webhook?kind=dead");
  await page.locator("tbody tr", { hasText: "dead" }).locator("a").first().click();
  await page.locator("h1", { hasText: "Message" }).waitFor();
  await page.locator(".facts .error", { hasText: "422" }).waitFor();
  const message = await accessibility(page);
  check(message.length === 0, `the message: ${message.join("; ") || "accessible"}`);
  await at("/outbox/demo-webhook?kind=dead");
  const purged = await act("Purge these …", "Purge dead messages", "demo-webhook");
  check(/Done: \d+ messages?\./.test(purged), `dead messages are purged: ${purged}`);
  check(/would stay|wait, and/.test(await act("Pause …", "Pause demo-webhook")), "the subscription is paused");
  await page.locator("h1 .state", { hasText: "paused" }).waitFor();
  await page.locator(".lines svg").first().waitFor();
  check(true, "the lines are drawn");
  const subscription = await accessibility(page);
  check(subscription.length === 0, `the subscription: ${subscription.join("; ") || "accessible"}`);
  await act("Resume …", "Resume demo-webhook");
  await page.locator("h1 .state", { hasText: "running" }).waitFor();
  check(true, "the subscription is resumed");

  for (const path of ["/queues", "/queues/default", "/outbox"]) {
    for (const theme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: theme });
      await at(path);
      await page.waitForFunction(() => document.querySelector("main h1") && !/Reading /.test(document.querySelector("main").textContent));
      const wrong = await accessibility(page);
      check(wrong.length === 0, `${theme} ${path}: ${wrong.join("; ") || "accessible"}`);
    }
  }

  // Whoever may only read sees no button, and is refused: the proxy names the user.
  const viewer = await context.browser().newContext({ extraHTTPHeaders: { "X-Forwarded-User": "viewer" } });
  const watched = await viewer.newPage();
  for (const path of ["/nodes/dev-0", "/queues/default?state=dead", "/outbox/demo-webhook", "/daemons"]) {
    await watched.goto(`${base}/#${path}`);
    await watched.locator(".panel, .table").first().waitFor();
    await watched.locator(".badge", { hasText: "read only" }).waitFor();
    check((await watched.getByRole("button", { name: "…" }).count()) === 0, `who may only read sees no action on ${path}`);
  }
  const refused = await watched.evaluate(async () => {
    const answer = await fetch("api/v1/commands", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ kind: "node.drain", node: "dev-0" }) });
    return `${answer.status} ${(await answer.json()).detail}`;
  });
  check(refused.startsWith("403"), `and is refused: ${refused}`);

  // Whoever has a role for one queue sees this one, and no refusal.
  const limited = await context.browser().newContext({ extraHTTPHeaders: { "X-Forwarded-User": "mailer" } });
  const part = await limited.newPage();
  await part.goto(`${base}/#/`);
  await part.locator(".tile", { hasText: "Queues" }).waitFor();
  await part.locator(".stream-state.live").waitFor();
  const tiles = await part.locator(".tile h3").allInnerTexts();
  check(tiles.join() === "Queues" && (await part.locator(".problem").count()) === 0, `a limited role sees ${tiles}: ${await part.locator("nav").innerText()}`);
  await part.goto(`${base}/#/queues`);
  await part.locator("tbody a", { hasText: "default" }).waitFor();
  check((await part.locator("tbody tr").count()) === 1, "and one queue");

  // A proxy that keeps the stream to itself: what is shown goes on, a little later.
  const proxy = createServer((from, to) => {
    const on = request(base + from.url, { method: from.method, headers: from.headers }, (answer) => {
      to.writeHead(answer.statusCode, answer.headers);
      if (!/event-stream/.test(answer.headers["content-type"] ?? "")) answer.pipe(to);
      else to.flushHeaders();
    });
    on.on("error", () => to.destroy());
    to.on("close", () => on.destroy());
    from.pipe(on);
  });
  await new Promise((listening) => proxy.listen(0, "127.0.0.1", listening));
  const behind = await open(`http://127.0.0.1:${proxy.address().port}`, token);
  await behind.at("/nodes/dev-1");
  await behind.page.locator(".stream-state.held").waitFor();
  await page.evaluate(() => fetch("api/v1/commands", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ kind: "node.cordon", node: "dev-1", reason: "behind a proxy" }) }));
  await behind.page.locator(".orders li", { hasText: "behind a proxy" }).waitFor();
  check(true, "behind a proxy that buffers the stream the page is read every few seconds");
  for (const p of behind.problems) check(false, p);
  await behind.browser.close();
  proxy.close();
  proxy.closeAllConnections();

  // A token that is revoked ends the stream, and the page says why.
  await at("/");
  await page.locator(".stream-state.live").waitFor();
  console.log("revoke");
  await page.locator(".login .error", { hasText: "revoked" }).waitFor();
  check((await page.locator(".tile").count()) === 0, `a revoked token: ${await page.locator(".login .error").innerText()}`);
} catch (error) {
  check(false, String(error));
  console.log((await page.locator("body").innerText().catch(() => "")).slice(0, 3000));
}
await end(browser, problems);
