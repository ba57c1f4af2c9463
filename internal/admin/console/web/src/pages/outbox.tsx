import { get, post, type Message, type MessageFilter, type OutboxAction, type OutboxActionAnswer, type Subscription } from "../api";
import { bytes, count, several } from "../format";
import { useQuery } from "../query";
import { setParams, to, useParam } from "../route";
import { span } from "../time";
import { Actions, type Action, type Offer, type Options } from "../parts/action";
import { Ago, Facts, Moment, Panel, Refused, State, Until, Waiting } from "../parts/basic";
import { LastHour, type Plot } from "../parts/lines";
import { Payload } from "../parts/payload";
import { Table, type Column } from "../parts/table";
import { Choice } from "./overview";
import { Pages } from "./queues";

const pending = (s: { pending: number; exact: boolean }) => `${s.exact ? "" : "≈ "}${count(s.pending)}`;

function stateOf(s: Subscription): string {
  return s.paused ? "paused" : s.cursors.some((c) => c.trouble) ? "sink down" : "running";
}

const columns: Column<Subscription>[] = [
  { name: "subscription", value: (s) => s.subscription, show: (s) => <a href={to("outbox", s.subscription)}>{s.subscription}</a> },
  { name: "state", value: stateOf, show: (s) => <State of={stateOf(s)} /> },
  { name: "pending", value: (s) => s.pending, show: pending, numeric: true },
  { name: "oldest", value: (s) => s.oldest_age_ms, show: (s) => (s.pending ? span(s.oldest_age_ms) : "–"), numeric: true },
  { name: "parked keys", value: (s) => s.keys_waiting, numeric: true },
  { name: "held keys", value: (s) => s.keys_held, numeric: true },
  { name: "dead", value: (s) => s.dead, numeric: true },
  { name: "relays", value: (s) => s.instances, numeric: true },
];

export function OutboxPage() {
  const { data, problem } = useQuery("outbox", (signal) => get("/outbox", {}, signal), 2000);
  const o = data?.outbox;
  return (
    <>
      <h1>Outbox</h1>
      {!data ? <Waiting problem={problem} what="the outbox" /> : !o ? <p>This cluster has no outbox.</p> : (
        <>
          {o.problem && <p class="error">{o.problem}</p>}
          <p class="quiet">{o.kind}: {pending(o)} pending{o.pending ? `, the oldest for ${span(o.oldest_age_ms)}` : ""}; {several(o.dead, "dead message")}</p>
          <Table what="subscriptions" rows={o.subscriptions} columns={columns} id={(s) => s.subscription} sort="subscription" empty="There is no subscription." />
        </>
      )}
    </>
  );
}

/** An action on messages, or on a subscription. */
function outboxAction(subscription: string, body: OutboxAction | ((o: Options) => OutboxAction), a: Omit<Action, "preview" | "run"> & { none: string; effect: (n: string) => string; counts?: boolean }): Action {
  const send = (o: Options, more: Partial<OutboxAction>) =>
    post<OutboxActionAnswer>("/outbox/{subscription}/actions", { subscription }, { ...(typeof body === "function" ? body(o) : body), ...more });
  return {
    ...a,
    async preview(o) {
      if (a.counts === false) return { text: a.effect("") };
      const { count: n } = await send(o, { dry_run: true });
      return n === 0 ? { text: a.none, none: true } : { text: a.effect(several(n, "message")) };
    },
    async run(o) {
      const { count: n } = await send(o, {});
      return a.counts === false ? "Done." : `Done: ${several(n, "message")}.`;
    },
  };
}

function subscriptionOffers(s: Subscription): Offer[] {
  const name = s.subscription;
  return [
    s.paused
      ? { label: "Resume …", action: outboxAction(name, { action: "resume" }, { title: `Resume ${name}`, about: "Its messages are delivered again.", none: "", effect: () => `${pending(s)} pending messages are delivered.`, counts: false }) }
      : { label: "Pause …", danger: true, action: outboxAction(name, { action: "pause" }, { title: `Pause ${name}`, about: "Nothing of it is delivered, until it is resumed. Its messages are kept.", none: "", effect: () => `${pending(s)} pending messages wait, and further ones with them.`, counts: false }) },
    {
      label: "Replay …",
      action: outboxAction(name, (o) => ({ action: "replay", replay: {
        ...(o.chosen.since ? { since: o.chosen.since } : {}), ...(o.chosen.until ? { until: o.chosen.until } : {}), ...(o.chosen.key ? { key: o.chosen.key } : {}),
        ...(o.chosen.topics ? { topics: o.chosen.topics.split(/[\s,]+/).filter(Boolean) } : {}),
        ...(o.chosen.since || o.chosen.until || o.chosen.key || o.chosen.topics ? {} : { after: 0 }),
      } }), {
        title: `Replay ${name}`, about: "Delivers messages of the log again. Its receiver gets them twice.", confirm: name,
        choices: [
          { name: "since", label: "Published at this time or later", optional: "2030-01-31T09:00:00Z; empty: from the beginning" },
          { name: "until", label: "Published before this time", optional: "empty: up to the newest" },
          { name: "topics", label: "Topics", optional: "orders.*, invoices; empty: all" },
          { name: "key", label: "Key", optional: "empty: all" },
        ],
        none: "No message of the log is selected.", effect: (n) => `${n} would be delivered again.`,
      }),
    },
    { label: "Forget …", danger: true, action: outboxAction(name, { action: "forget" }, { title: `Forget ${name}`, about: "Its positions and its dead messages are removed. Only a subscription that is configured nowhere can be forgotten.", confirm: name, none: "", effect: () => `${pending(s)} pending and ${s.dead} dead messages would be lost for it.`, counts: false }) },
  ];
}

function messageOffers(subscription: string, filter: MessageFilter): Offer[] {
  const words = [filter.kind ?? "parked and dead", "messages", filter.topic && `of the topic ${filter.topic}`, filter.key && `with the key ${filter.key}`, filter.cause && `with “${filter.cause}” in their cause`].filter(Boolean).join(" ");
  const chosen = Object.values(filter).some(Boolean) ? { select: filter } : { all: true };
  const none = `There are no ${words} to which this applies.`;
  return [
    { label: "Retry these …", action: outboxAction(subscription, { action: "retry", ...chosen }, { title: `Retry ${words}`, about: "They are delivered again at once.", none, effect: (n) => `${n} would be tried again.` }) },
    { label: "Skip these …", danger: true, action: outboxAction(subscription, { action: "skip", ...chosen }, { title: `Skip ${words}`, about: "They become dead letters, and the later messages of their keys are delivered.", none, effect: (n) => `${n} would be given up.` }) },
    { label: "Purge these …", danger: true, action: outboxAction(subscription, { action: "purge", ...chosen }, { title: `Purge ${words}`, about: "Dead messages are removed for good.", none, effect: (n) => `${n} would be removed.`, confirm: subscription }) },
  ];
}

const plots: Plot[] = [
  { title: "Pending messages", name: "outbox.pending", words: { "": "pending" } },
  { title: "Lag: age of the oldest pending message", name: "outbox.oldest.age", words: { "": "lag" } },
  { title: "Delivered", name: "outbox.delivered", words: { "": "delivered" } },
  { title: "From publishing to delivery", name: "outbox.delivery.duration", series: ["p50", "p95", "p99"] },
  { title: "Dead messages", name: "outbox.dead", series: [""], words: { "": "dead" }, bad: "" },
];

export function SubscriptionPage({ name }: { name: string }) {
  const { data, problem } = useQuery(`subscription ${name}`, (signal) => get("/outbox/{subscription}", { subscription: name }, signal), 2000);
  const [kind, setKind] = useParam("kind", "all");
  const [topic] = useParam("topic");
  const [key] = useParam("key");
  const [cause] = useParam("cause");
  const s = data?.subscription;
  if (!s) return <><h1>{name}</h1><Waiting problem={problem} what="the subscription" /></>;
  const filter = Object.fromEntries(Object.entries({ kind: kind === "all" ? "" : kind, topic, key, cause }).filter(([, v]) => v)) as MessageFilter;
  return (
    <>
      <h1>{name} <State of={stateOf(s)} /></h1>
      <Refused problem={problem} />
      <div class="actions"><Actions of={{ subscription: name }} offers={subscriptionOffers(s)} /></div>
      <Panel title="Subscription">
        <Facts rows={[
          ["Pending", <>{pending(s)}{s.pending > 0 && <span class="quiet">, the oldest since <Moment at={s.oldest_at} />, for {span(s.oldest_age_ms)}</span>}</>],
          ["Parked keys", `${count(s.keys_waiting)}, of which ${count(s.keys_held)} wait for an operator`],
          ["Dead", s.dead ? <State of="dead">{count(s.dead)}</State> : "0"],
          ["Delayed", s.delayed ? <>{count(s.delayed)}{s.next_at && <>, the first due <Until at={s.next_at} over="now" /></>}</> : "0"],
          ["Relays", <>{s.instances} <a href={to("daemons", data.relay)}>units</a></>],
          ["Log on disk", bytes(s.retained_bytes)],
        ]} />
      </Panel>
      <LastHour of={`subscription ${name}`} read={(signal) => get("/outbox/{subscription}/trends", { subscription: name }, signal)} plots={plots} />
      <Panel title="Positions">
        <Table what="positions" bare rows={s.cursors} id={(c) => c.shards} prefix="p" columns={[
          { name: "shards", value: (c) => c.shards },
          { name: "node", value: (c) => c.node, show: (c) => (c.node ? <a href={to("nodes", c.node)}>{c.node}</a> : "–") },
          { name: "generation", value: (c) => c.generation, show: (c) => c.generation, numeric: true },
          { name: "updated", value: (c) => c.updated_at, show: (c) => <><Ago at={c.updated_at} /> ago</> },
          { name: "sink", value: (c) => c.trouble, show: (c) => (c.trouble ? <span class="error clip" title={c.trouble}>{c.trouble}</span> : <State of="running">up</State>) },
        ]} empty="No relay has a position yet." />
      </Panel>
      <Panel title="Messages that are parked or dead" aside={<Choice label="Kind of the messages" options={["all", "waiting", "held", "behind", "dead"]} value={kind} onChange={setKind} />}>
        <form class="filters" onSubmit={(e) => e.preventDefault()}>
          {([["topic", "Topic", topic], ["key", "Key", key], ["cause", "Cause contains", cause]] as const).map(([param, label, value]) => (
            <label class="field" key={param}>{label}<input value={value} spellcheck={false} onChange={(e) => setParams({ [param]: e.currentTarget.value.trim() })} /></label>
          ))}
        </form>
        <div class="actions"><Actions key={JSON.stringify(filter)} of={{ subscription: name }} offers={messageOffers(name, filter)} /></div>
        <Messages subscription={name} filter={filter} />
      </Panel>
    </>
  );
}

function Messages({ subscription, filter }: { subscription: string; filter: MessageFilter }) {
  const key = `messages ${subscription} ${JSON.stringify(filter)}`;
  const params = { subscription, ...filter };
  const first = useQuery(key, (signal) => get("/outbox/{subscription}/messages", { ...params, limit: 200 }, signal), 3000);
  return (
    <Pages<Message> key={key} first={first.data && { rows: first.data.messages, cursor: first.data.cursor }} problem={first.problem} what="messages" id={(m) => String(m.seq)}
      more={async (cursor) => {
        const p = await get("/outbox/{subscription}/messages", { ...params, limit: 1000, cursor });
        return { rows: p.messages, cursor: p.cursor };
      }}>
      {(rows, partial) => (
        <Table what="messages" rows={rows} id={(m) => String(m.seq)} partial={partial} empty="No message is parked or dead." columns={[
          { name: "number", value: (m) => m.seq, numeric: true, show: (m) => <a href={to("outbox", subscription, String(m.seq))}>{m.seq}</a> },
          { name: "kind", value: (m) => m.kind, show: (m) => <State of={m.kind} /> },
          { name: "topic", value: (m) => m.topic },
          { name: "key", value: (m) => m.key },
          { name: "attempts", value: (m) => m.attempts, numeric: true },
          { name: "parked", value: (m) => m.parked_at, show: (m) => <><Ago at={m.parked_at} /> ago</> },
          { name: "next attempt", value: (m) => m.next_at, show: (m) => (m.next_at ? <Until at={m.next_at} over="now" /> : "–") },
          { name: "cause", value: (m) => m.cause, show: (m) => <span class="clip" title={m.cause}>{m.cause || "–"}</span> },
        ]} />
      )}
    </Pages>
  );
}

export function MessagePage({ subscription, seq }: { subscription: string; seq: string }) {
  const { data, problem } = useQuery(`message ${subscription} ${seq}`, (signal) => get("/outbox/{subscription}/messages/{seq}", { subscription, seq }, signal), 3000);
  const m = data?.message;
  if (!m) return <><h1>Message {seq}</h1><p><a href={to("outbox", subscription)}>Subscription {subscription}</a></p><Waiting problem={problem} what="the message" /></>;
  const only = { seqs: [m.seq] };
  const none = "It is not among them any more.";
  return (
    <>
      <h1>Message {m.seq} <State of={m.kind} /></h1>
      <p><a href={to("outbox", subscription)}>Subscription {subscription}</a></p>
      <Refused problem={problem} />
      <div class="actions">
        <Actions of={{ subscription }} offers={[
          { label: "Retry …", action: outboxAction(subscription, { action: "retry", ...only }, { title: "Retry", about: "It is delivered again at once.", none, effect: (n) => `${n} would be tried again.` }) },
          ...(m.kind === "dead"
            ? [{ label: "Purge …", danger: true, action: outboxAction(subscription, { action: "purge", ...only }, { title: "Purge", about: "It is removed for good.", none, effect: (n) => `${n} would be removed.` }) }]
            : [{ label: "Skip …", danger: true, action: outboxAction(subscription, { action: "skip", ...only }, { title: "Skip", about: "It becomes a dead letter, and the later messages of its key are delivered.", none, effect: (n) => `${n} would be given up.` }) }]),
        ]} />
      </div>
      <Panel title="Message">
        <Facts rows={[
          ["Topic", m.topic],
          ["Key", m.key || "none"],
          ["Type", m.type],
          ["ID", <code>{m.id}</code>],
          ["Published", <><Moment at={m.created_at} />, <Ago at={m.created_at} /> ago</>],
          ["Parked", <><Moment at={m.parked_at} />, <Ago at={m.parked_at} /> ago</>],
          ["Attempts", String(m.attempts)],
          ["Next attempt", m.next_at ? <Until at={m.next_at} over="now" /> : ""],
          ["Last error", m.cause ? <span class="error">{m.cause}</span> : ""],
          ["Shard", String(m.shard)],
          ["Trace", m.traceparent ? <code>{m.traceparent}</code> : ""],
          ["Headers", Object.keys(m.headers).length ? <pre class="json">{JSON.stringify(m.headers, null, 2)}</pre> : ""],
        ]} />
      </Panel>
      <Payload title="Payload" name={`message-${m.seq}`} json={m.payload} base64={m.payload_base64} />
    </>
  );
}
