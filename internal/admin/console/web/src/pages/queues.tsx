import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post, type Job, type JobDetail, type Problem, type QueueAction, type QueueActionAnswer, type QueueStats } from "../api";
import { bytes, count, decimal, several } from "../format";
import { useQuery } from "../query";
import { setParams, to, useParam } from "../route";
import { span } from "../time";
import { Actions, problemOf, type Action, type Offer } from "../parts/action";
import { Ago, Facts, Moment, Panel, Refused, State, Until, Waiting } from "../parts/basic";
import { LastHour, type Plot } from "../parts/lines";
import { Payload } from "../parts/payload";
import { Table, type Column } from "../parts/table";
import { Choice } from "./overview";

const rate = (n: number) => `${decimal(n)}/s`;

const columns: Column<QueueStats>[] = [
  { name: "queue", value: (q) => q.queue, show: (q) => <a href={to("queues", q.queue)}>{q.queue}</a> },
  { name: "state", value: stateOf, show: (q) => <State of={stateOf(q)} /> },
  { name: "waiting", value: (q) => q.waiting, numeric: true },
  { name: "delayed", value: (q) => q.delayed, numeric: true },
  { name: "active", value: (q) => q.active, numeric: true },
  { name: "dead", value: (q) => q.dead, numeric: true },
  { name: "oldest waiting", value: (q) => q.oldest_age_ms, show: (q) => (q.waiting ? span(q.oldest_age_ms) : "–"), numeric: true },
  { name: "submitted", value: (q) => q.enqueue_rate, show: (q) => rate(q.enqueue_rate), numeric: true },
  { name: "completed", value: (q) => q.complete_rate, show: (q) => rate(q.complete_rate), numeric: true },
  { name: "served by", value: (q) => q.broker },
  { name: "problem", value: (q) => q.problem, show: (q) => <span class="clip" title={q.problem}>{q.problem || "–"}</span> },
];

function stateOf(q: QueueStats): string {
  return q.problem ? "failing" : q.paused ? "paused" : "serving";
}

export function QueuesPage() {
  const { data, problem } = useQuery("queues", (signal) => get("/queues", {}, signal), 2000);
  return (
    <>
      <h1>Queues</h1>
      {data?.queues?.problem && <p class="error">{data.queues.problem}</p>}
      {!data ? <Waiting problem={problem} what="the queues" /> : !data.queues ? <p>This server shows no queues.</p> : (
        <Table what="queues" rows={data.queues.queues} columns={columns} id={(q) => q.queue} sort="queue" empty="No queue is declared." />
      )}
    </>
  );
}

/** An action on jobs, or on a queue. */
function queueAction(queue: string, body: QueueAction, a: { title: string; about: string; none: string; effect: (n: string) => string; confirm?: string; counts?: boolean }): Action {
  const send = (more: Partial<QueueAction>) => post<QueueActionAnswer>("/queues/{queue}/actions", { queue }, { ...body, ...more });
  return {
    title: a.title, about: a.about, confirm: a.confirm,
    async preview() {
      if (a.counts === false) return { text: a.effect("") };
      const { count: n, more } = await send({ dry_run: true });
      return n === 0 ? { text: a.none, none: true } : { text: a.effect(`${more ? "more than " : ""}${several(n, "job")}`) };
    },
    async run() {
      const { count: n } = await send({});
      return a.counts === false ? "Done." : `Done: ${several(n, "job")}.`;
    },
  };
}

function jobOffers(queue: string, state: string, type: string): Offer[] {
  const which = type ? `${state} jobs of the type ${type}` : `${state} jobs`;
  const select: Partial<QueueAction> = type ? { type } : { all: true };
  const none = `There are no ${which}.`;
  const out: Offer[] = [];
  if (state === "dead") {
    out.push({ label: "Redrive all …", action: queueAction(queue, { action: "redrive", ...select }, { title: `Redrive the ${which}`, about: "Dead jobs are waiting again, with all their attempts.", none, effect: (n) => `${n} would be waiting again.` }) });
  }
  if (state === "delayed") {
    out.push({ label: "Retry all now …", action: queueAction(queue, { action: "retry", ...select }, { title: `Retry the ${which} now`, about: "Delayed jobs are waiting at once instead of at their time.", none, effect: (n) => `${n} would be waiting at once.` }) });
  }
  if (!type && state !== "active") {
    out.push({ label: `Purge all ${state} …`, danger: true, action: queueAction(queue, { action: "purge", state }, { title: `Purge the ${which}`, about: "The jobs are removed for good.", none, effect: (n) => `${n} would be removed.`, confirm: queue }) });
  }
  return out;
}

const plots: Plot[] = [
  { title: "Jobs", name: "queue.jobs", series: ["ready", "delayed", "claimed", "dead"], words: { ready: "waiting", claimed: "active" }, bad: "dead" },
  { title: "Age of the oldest waiting job", name: "queue.oldest.age", words: { "": "age" } },
  { title: "Submitted", name: "queue.submitted", words: { "": "submitted" } },
  { title: "Claimed", name: "queue.claimed", words: { "": "claimed" } },
  { title: "Calls that submit", name: "queue.call.duration", series: ["enqueue p50", "enqueue p95", "enqueue p99"], words: { "enqueue p50": "p50", "enqueue p95": "p95", "enqueue p99": "p99" } },
  { title: "Calls that settle", name: "queue.call.duration", series: ["settle p50", "settle p95", "settle p99"], words: { "settle p50": "p50", "settle p95": "p95", "settle p99": "p99" } },
  { title: "Commits: from a decision until it is stored", name: "queue.commit.duration", series: ["p50", "p95", "p99"] },
];

export function QueuePage({ name }: { name: string }) {
  const [state, setState] = useParam("state", "waiting");
  const [type] = useParam("type");
  const { data, problem } = useQuery(`queue ${name}`, (signal) => get("/queues/{queue}", { queue: name }, signal), 2000);
  if (!data) return <><h1>{name}</h1><Waiting problem={problem} what="the queue" /></>;
  const s = data.stats;
  const set = data.settings;
  const pause: Offer = s.paused
    ? { label: "Resume …", action: queueAction(name, { action: "resume" }, { title: `Resume ${name}`, about: "Workers get jobs of the queue again.", none: "", effect: () => `${several(s.waiting, "job")} may be claimed again.`, counts: false }) }
    : { label: "Pause …", danger: true, action: queueAction(name, { action: "pause" }, { title: `Pause ${name}`, about: "Workers get no further jobs of the queue, until it is resumed. Jobs can still be submitted.", none: "", effect: () => `${several(s.waiting, "waiting job")} would stay waiting; ${s.active} under way go on.`, counts: false }) };
  return (
    <>
      <h1>{name} <State of={s.paused ? "paused" : "serving"} /></h1>
      <Refused problem={problem} />
      <div class="actions"><Actions of={{ queue: name }} offers={[pause]} /></div>
      <Panel title="Queue">
        <Facts rows={[
          ["Waiting", <>{count(s.waiting)}{s.waiting > 0 && <span class="quiet">, the oldest for {span(s.oldest_age_ms)}</span>}</>],
          ["Delayed", count(s.delayed)],
          ["Active", count(s.active)],
          ["Dead", s.dead ? <State of="dead">{count(s.dead)}</State> : "0"],
          ["Rates", `${rate(s.enqueue_rate)} submitted, ${rate(s.complete_rate)} completed`],
          ["Since it began", `${count(s.enqueued)} submitted, ${count(s.completed)} completed, ${several(s.failed, "failed attempt")}, ${several(s.duplicates, "duplicate")}`],
          ["Memory", `${bytes(s.index_bytes + s.dedup_bytes)} of index, ${bytes(s.payload_bytes)} of payloads`],
          ["Writes", `${count(s.writes)} to the object store${s.write_budget ? `, budget ${decimal(s.write_budget)}/s` : ""}`],
          ["Served by", s.broker || "–"],
          ["Shards", <>{s.shards} <a href={to("daemons", `emit:queue/${name}`)}>units</a></>],
          ["Visibility timeout", set.visibility_ms ? span(set.visibility_ms) : "the default"],
          ["Attempts", set.retry?.max_attempts ? `at most ${set.retry.max_attempts}` : "the default"],
          ["Deduplication", set.dedup_window_ms ? `for ${span(set.dedup_window_ms)}` : "the default"],
          ["Limit", set.max_jobs ? several(set.max_jobs, "job") : ""],
        ]} />
      </Panel>
      <LastHour of={`queue ${name}`} read={(signal) => get("/queues/{queue}/trends", { queue: name }, signal)} plots={plots} />
      <Panel title="Jobs" aside={<Choice label="State of the jobs" options={["waiting", "delayed", "active", "dead"]} value={state} onChange={setState} />}>
        <div class="actions">
          <label class="field inline">Type <input value={type} spellcheck={false} onChange={(e) => setParams({ type: e.currentTarget.value.trim() })} /></label>
          <Actions key={state + type} of={{ queue: name }} offers={jobOffers(name, state, type)} />
        </div>
        <Jobs queue={name} state={state} type={type} />
      </Panel>
    </>
  );
}

const jobColumns: (queue: string) => Column<Job>[] = (queue) => [
  { name: "ID", value: (j) => j.id, show: (j) => <a href={to("queues", queue, j.id)}><code>{j.id}</code></a> },
  { name: "type", value: (j) => j.type },
  { name: "attempts", value: (j) => j.attempts, show: (j) => `${j.attempts}${j.max_attempts ? ` of ${j.max_attempts}` : ""}`, numeric: true },
  { name: "submitted", value: (j) => j.created_at, show: (j) => <><Ago at={j.created_at} /> ago</> },
  { name: "runs", value: (j) => j.run_at ?? j.until, show: (j) => (j.run_at ? <Until at={j.run_at} over="now" /> : j.until ? <>claim ends <Until at={j.until} over="now" /></> : "–") },
  { name: "worker", value: (j) => j.worker },
  { name: "size", value: (j) => j.size, show: (j) => bytes(j.size), numeric: true },
  { name: "cause", value: (j) => j.cause, show: (j) => <span class="clip" title={j.cause}>{j.cause || "–"}</span> },
];

/** The jobs in one state, page by page. The first page is live. */
function Jobs({ queue, state, type }: { queue: string; state: string; type: string }) {
  const key = `jobs ${queue} ${state} ${type}`;
  const first = useQuery(key, (signal) => get("/queues/{queue}/jobs", { queue, state, type, limit: 200 }, signal), 3000);
  return (
    <Pages key={key} first={first.data && { rows: first.data.jobs, cursor: first.data.cursor }} problem={first.problem} what="jobs" id={(j) => j.id}
      more={async (cursor) => {
        const p = await get("/queues/{queue}/jobs", { queue, state, type, limit: 1000, cursor });
        return { rows: p.jobs, cursor: p.cursor };
      }}>
      {(rows, partial) => <Table what="jobs" rows={rows} columns={jobColumns(queue)} id={(j) => j.id} empty={`No job is ${state}.`} partial={partial} />}
    </Pages>
  );
}

export interface Page<R> {
  rows: R[];
  cursor: string | null;
}

/** A list whose first page is read again and again, and whose further pages are read on demand. */
export function Pages<R>({ first, problem, what, more, id, children }: {
  first: Page<R> | undefined;
  problem: Problem | null;
  what: string;
  more: (cursor: string) => Promise<Page<R>>;
  id: (row: R) => string;
  children: (rows: R[], partial: string) => ComponentChildren;
}) {
  const [further, setFurther] = useState<Page<R> | null>(null);
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<Problem | null>(null);
  useEffect(() => setFailed(null), [further]);
  if (!first) return <Waiting problem={problem} what={what} />;
  const cursor = further ? further.cursor : first.cursor;
  const known = new Set(first.rows.map(id)); // entries move forward when earlier ones go
  const joined = [...first.rows, ...(further?.rows ?? []).filter((r) => !known.has(id(r)))];
  const load = async () => {
    setBusy(true);
    try {
      const p = await more(cursor!);
      setFurther({ rows: [...(further?.rows ?? []), ...p.rows], cursor: p.cursor });
    } catch (error) {
      setFailed(problemOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <Refused problem={problem ?? failed} />
      {children(joined, cursor ? "there are more" : "")}
      {cursor && <p><button type="button" disabled={busy} onClick={() => void load()}>{busy ? "Reading …" : `More ${what}`}</button></p>}
    </>
  );
}

export function JobPage({ queue, id }: { queue: string; id: string }) {
  const [large, setLarge] = useState(false); // its payload is not read every few seconds
  const { data, problem } = useQuery(`job ${queue} ${id}`, (signal) => get("/queues/{queue}/jobs/{job}", { queue, job: id }, signal), large ? 60_000 : 3000);
  useEffect(() => setLarge(((data?.job as JobDetail | undefined)?.size ?? 0) > 1 << 20), [data]);
  const job = data?.job as JobDetail | undefined;
  if (!job) return <><h1>{id}</h1><Waiting problem={problem} what="the job" /></>;
  return (
    <>
      <h1>{job.id} <State of={job.state} /></h1>
      <p><a href={to("queues", queue)}>Queue {queue}</a></p>
      <Refused problem={problem} />
      <div class="actions"><Actions of={{ queue }} offers={offersOf(queue, job)} /></div>
      <Panel title="Job">
        <Facts rows={[
          ["Type", job.type],
          ["Submitted", <><Moment at={job.created_at} />, <Ago at={job.created_at} /> ago</>],
          ["Attempts", `${job.attempts}${job.max_attempts ? ` of at most ${job.max_attempts}` : ""}`],
          ["Deliveries", String(job.deliveries)],
          ["Runs", job.run_at ? <Until at={job.run_at} over="now" /> : ""],
          ["Claimed by", job.worker],
          ["Claim", job.until ? <>ends <Until at={job.until} over="now" /></> : ""],
          ["Ended", job.ended_at ? <Moment at={job.ended_at} /> : ""],
          ["Expires", job.expires_at ? <Until at={job.expires_at} over="now" /> : ""],
          ["Priority", job.priority ? String(job.priority) : ""],
          ["Group", job.group],
          ["Size", bytes(job.size)],
          ["Last error", job.cause ? <span class="error">{job.cause}</span> : ""],
        ]} />
      </Panel>
      <Payload title="Payload" name={`${job.id}-payload`} json={job.payload} base64={job.payload_base64} />
      <Payload title="Result" name={`${job.id}-result`} json={job.result} base64={job.result_base64} />
    </>
  );
}

function offersOf(queue: string, job: JobDetail): Offer[] {
  const ids = [job.id];
  const out: Offer[] = [];
  if (job.state === "delayed") out.push({ label: "Retry now …", action: queueAction(queue, { action: "retry", ids }, { title: "Retry now", about: "The job is waiting at once instead of at its time.", none: "It is not delayed any more.", effect: (n) => `${n} would be waiting at once.` }) });
  if (job.state === "dead") out.push({ label: "Redrive …", action: queueAction(queue, { action: "redrive", ids }, { title: "Redrive", about: "The job is waiting again, with all its attempts.", none: "It is not dead any more.", effect: (n) => `${n} would be waiting again.` }) });
  if (job.state === "waiting" || job.state === "delayed" || job.state === "active") {
    out.push({ label: "Cancel …", danger: true, action: queueAction(queue, { action: "cancel", ids }, { title: "Cancel the job", about: job.state === "active" ? "The worker that has it learns that its claim has ended." : "The job is removed and not executed.", none: "It cannot be cancelled any more.", effect: (n) => `${n} would be cancelled.` }) });
  }
  return out;
}
