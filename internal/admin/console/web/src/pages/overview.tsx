import { all, get, type Notice, type Overview as Data } from "../api";
import { count, several } from "../format";
import { overview, recent } from "../live";
import { useQuery } from "../query";
import { subjectLink, to, useParam } from "../route";
import { useStore } from "../store";
import { span, ticks, useNow } from "../time";
import { age, Ago, Bar, Copy, Moment, Panel, State, Subject, Tile, Waiting } from "../parts/basic";
import { EventList } from "../parts/events";
import { HeatMap } from "../parts/heat";
import { LastHour, type Plot } from "../parts/lines";
import { TermTimeline } from "../parts/terms";
import { Table } from "../parts/table";
import { useRef } from "preact/hooks";

export function OverviewPage() {
  const live = useStore(overview);
  const first = useQuery("overview", (signal) => get("/overview", {}, signal), 10_000);
  const data = newest(live, first.data);
  if (!data) return <Waiting problem={first.problem} what="the cluster" />;
  return (
    <>
      <h1>{data.cluster || "Overview"}</h1>
      <Attention notices={data.attention} all={data.notices} />
      <Tiles data={data} />
      {data.limited ? <p class="quiet">You see what your role is limited to.</p> : <Whole data={data} />}
    </>
  );
}

/** What only those see who may read the whole cluster. */
function Whole({ data }: { data: Data }) {
  return (
    <>
      <Terms />
      <Heat nodes={Object.values(data.nodes).reduce((a, b) => a + b, 0)} />
      <LastHour of="cluster" read={(signal) => get("/trends", {}, signal)} plots={plots} />
      <Latest />
    </>
  );
}

const shown = ["p50", "p95", "p99"];

export const leaderPlots: Plot[] = [
  { title: "Heartbeats: how long the store takes", name: "heartbeat.duration", series: shown },
  { title: "No leader: from the end of a lease to the next term", name: "leaderless.duration", series: shown },
];

const plots: Plot[] = [
  { title: "Units", name: "units", bad: "crashing" },
  ...leaderPlots,
  { title: "Drains: from a revocation to its confirmation", name: "drain.duration", series: shown },
  { title: "Units that ran nowhere between two nodes", name: "unowned.duration", series: shown },
  { title: "Starts: from an assignment until it runs", name: "acknowledge.duration", series: shown },
];

function newest(a: Data | null, b: Data | undefined): Data | undefined {
  if (!a || !b) return a ?? b;
  return Date.parse(a.at ?? "") >= Date.parse(b.at ?? "") ? a : b;
}

function Attention({ notices, all: total }: { notices: Notice[]; all: number }) {
  const said = useRef("");
  const worst = notices[0]?.text ?? "";
  const news = worst && worst.replace(/[\d.]+/g, "") !== said.current;
  if (news) said.current = worst.replace(/[\d.]+/g, "");
  return (
    <Panel title={total ? `Needs attention: ${count(total)}` : "Needs attention"} id="attention">
      <p class="sr" aria-live="polite">{said.current ? `Needs attention: ${notices[0]?.subject ?? ""}` : ""}</p>
      {total === 0 ? (
        <p><State of="live">Nothing needs attention.</State></p>
      ) : (
        <ul class="notices">
          {notices.slice(0, 20).map((n) => (
            <li key={n.subject + n.do + n.text.slice(0, 20)}>
              <State of={n.severity} />
              <Text notice={n} />
              {n.do && <Copy text={n.do} />}
            </li>
          ))}
          {total > 20 && <li class="quiet">and {count(total - 20)} more: emitd status lists all</li>}
        </ul>
      )}
    </Panel>
  );
}

/** The text of a notice. The first name in it is a link to where one can do something. */
function Text({ notice: n }: { notice: Notice }) {
  const unit = /^emitd daemon explain (.*)/.exec(n.do)?.[1] ?? "";
  if (unit && n.text.startsWith(unit + " ")) return <span><Subject of={unit} />{n.text.slice(unit.length)}</span>;
  const href = noticeLink(n);
  const name = href ? <a href={href}>{n.subject}</a> : n.subject;
  return n.text.startsWith(n.subject + " ") ? <span>{name}{n.text.slice(n.subject.length)}</span> : <span>{name}: {n.text}</span>;
}

/** The page about a notice, with the jobs or messages that it is about. */
function noticeLink(n: Notice): string | null {
  const href = subjectLink(n.subject);
  const which = / --(state|kind) (\w+)$/.exec(n.do);
  return href && which && /^(queue|outbox) /.test(n.subject) ? `${href}?${which[1]}=${which[2]}` : href;
}

function Tiles({ data }: { data: Data }) {
  return (
    <div class="tiles">
      {!data.limited && <ClusterTiles data={data} />}
      {data.queues && (
        <Tile title="Queues" href={to("queues")} value={<>{count(data.queues.queues.reduce((n, q) => n + q.waiting, 0))} <small>waiting</small></>} tone={data.queues.problem || data.queues.queues.some((q) => q.dead > 0) ? "warn" : ""}>
          {data.queues.problem || `${several(data.queues.queues.length, "queue")}, ${count(data.queues.queues.reduce((n, q) => n + q.active, 0))} active, ${count(data.queues.queues.reduce((n, q) => n + q.dead, 0))} dead`}
        </Tile>
      )}
      {data.outbox && (
        <Tile title="Outbox" href={to("outbox")} value={<>{data.outbox.exact ? "" : "≈ "}{count(data.outbox.pending)} <small>pending</small></>} tone={data.outbox.problem || data.outbox.dead > 0 || data.outbox.keys_held > 0 ? "warn" : ""}>
          {data.outbox.problem || <>oldest {data.outbox.pending ? span(data.outbox.oldest_age_ms) : "none"}, {several(data.outbox.keys_waiting, "parked key")}, {count(data.outbox.dead)} dead</>}
        </Tile>
      )}
      {!data.limited && (
        <Tile title="Standing commands" href={to("commands")} value={count(data.orders)}>
          {data.orders ? "of operators, in force" : "none in force"}
        </Tile>
      )}
    </div>
  );
}

function ClusterTiles({ data }: { data: Data }) {
  const live = data.nodes.live ?? 0;
  const nodes = sum(data.nodes);
  const active = data.units.active ?? 0;
  const units = sum(data.units);
  return (
    <>
      <LeaderTile data={data} />
      <LeaseTile data={data} />
      <Tile title="Nodes" href={to("nodes")} value={live === nodes ? count(live) : <>{count(live)} <small>of {count(nodes)}</small></>} tone={live < nodes ? "warn" : ""}>
        <States counts={data.nodes} />
      </Tile>
      <Tile title="Units" href={to("daemons")} value={active === units ? count(active) : <>{count(active)} <small>of {count(units)}</small></>} tone={active < units ? "warn" : ""}>
        <States counts={data.units} /> <span class="quiet">{several(data.daemons, "daemon")}</span>
      </Tile>
    </>
  );
}

const sum = (counts: Record<string, number>) => Object.values(counts).reduce((a, b) => a + b, 0);

function States({ counts }: { counts: Record<string, number> }) {
  return <>{Object.entries(counts).filter(([, n]) => n > 0).map(([s, n]) => <State key={s} of={s}>{count(n)} {s}</State>)}</>;
}

function LeaderTile({ data }: { data: Data }) {
  const l = data.leader;
  if (!l) return <Tile title="Leader" href={to("leader")} value="none" tone="bad">No node leads.</Tile>;
  return (
    <Tile title="Leader" href={to("leader")} value={l.node} tone={l.expired ? "bad" : ""}>
      <span aria-live="polite">term {l.term_ordinal}{l.expired ? ", expired" : ""}</span> <span class="quiet">for <Ago at={l.elected_at} /></span>
    </Tile>
  );
}

function LeaseTile({ data }: { data: Data }) {
  const now = useNow();
  const l = data.leader;
  const whole = useRef(0);
  if (!l?.expires_at) return <Tile title="Lease" href={to("leader")} value="–" tone="bad">nobody has one</Tile>;
  const left = Date.parse(l.expires_at) - now;
  const term = whole.current;
  whole.current = Math.max(term, Date.parse(l.expires_at) - Date.parse(data.at ?? l.expires_at));
  return (
    <Tile title="Lease" href={to("leader")} value={left > 0 ? ticks(left) : "expired"} tone={left > 0 ? "" : "bad"}>
      <Bar part={left / Math.max(whole.current, 1)} label={`${ticks(Math.max(left, 0))} left`} /> <span class="quiet">left unless renewed</span>
    </Tile>
  );
}

const ranges: [string, number][] = [["5m", 300_000], ["15m", 900_000], ["1h", 3_600_000], ["6h", 21_600_000], ["24h", 86_400_000]];

export function Terms() {
  const { data, problem } = useQuery("terms", (signal) => get("/terms", { limit: 200 }, signal), 2000);
  const oldest = data?.terms.at(-1)?.elected_at;
  const [range, setRange] = useParam("terms", (oldest && ranges.find(([, ms]) => age(oldest) < ms && ms < 3_600_000)?.[0]) || "1h");
  const over = ranges.find(([name]) => name === range)?.[1] ?? 3_600_000;
  useNow(5000);
  return (
    <Panel title="Terms" aside={<Choice label="Period of the terms" options={ranges.map(([n]) => n)} value={range} onChange={setRange} />}>
      {data ? (
        data.terms.length ? <TermTimeline terms={data.terms} over={over} /> : <p class="quiet">No node has led yet.</p>
      ) : (
        <Waiting problem={problem} what="the terms" />
      )}
      {data && data.terms.length > 0 && (
        <details>
          <summary>As a table</summary>
          <TermTable terms={data.terms} />
        </details>
      )}
    </Panel>
  );
}

export function TermTable({ terms, controls }: { terms: import("../api").Term[]; controls?: import("preact").ComponentChildren }) {
  return (
    <Table what="terms" bare={!controls} controls={controls} rows={terms} id={(t) => String(t.term)} prefix="t" columns={[
      { name: "term", value: (t) => t.term_ordinal, numeric: true },
      { name: "node", value: (t) => t.node, show: (t) => <a href={to("nodes", t.node)}>{t.node}</a> },
      { name: "elected", value: (t) => t.elected_at, show: (t) => <Moment at={t.elected_at} /> },
      { name: "held", value: (t) => t.held_seconds, show: (t) => span(t.held_seconds * 1000), numeric: true },
      { name: "ended by", value: (t) => t.ended_by, show: (t) => (t.ended_at ? t.ended_by : <State of="live">leads</State>) },
      { name: "gap to next", value: (t) => t.gap_seconds, show: (t) => (t.gap_seconds === null ? "–" : span(t.gap_seconds * 1000)), numeric: true },
    ]} />
  );
}

export function Choice({ label, options, value, onChange }: { label: string; options: string[]; value: string; onChange: (v: string) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map((o) => <button key={o} type="button" aria-pressed={o === value} onClick={() => onChange(o)}>{o}</button>)}
    </div>
  );
}

function Heat({ nodes }: { nodes: number }) {
  const { data, problem } = useQuery("heat", (signal) => all("/nodes", "nodes", {}, signal), nodes > 200 ? 10_000 : 2000);
  return (
    <Panel title="Units by node">
      {data ? data.rows.length ? <HeatMap nodes={data.rows} /> : <p class="quiet">There are no nodes.</p> : <Waiting problem={problem} what="the nodes" />}
    </Panel>
  );
}

function Latest() {
  const live = useStore(recent);
  const { data } = useQuery("latest", (signal) => get("/events", { limit: 12 }, signal), 10_000);
  const known = new Set(live.map((e) => e.seq));
  const events = [...live, ...(data?.events ?? []).filter((e) => !known.has(e.seq))].sort((a, b) => b.seq - a.seq).slice(0, 12);
  return (
    <Panel title="Latest events" aside={<a href={to("events")}>all events</a>}>
      <EventList events={events} />
    </Panel>
  );
}
