import { useEffect, useRef } from "preact/hooks";
import { all, call, get, type Explanation, type Unit } from "../api";
import { unitActions } from "../actions";
import { decimal, several } from "../format";
import { useQuery } from "../query";
import { to } from "../route";
import { Actions } from "../parts/action";
import { Ago, Facts, Moment, Orders, Panel, Refused, State, Until, Waiting } from "../parts/basic";
import { EventList } from "../parts/events";
import { Life } from "../parts/life";
import { Table } from "../parts/table";

export function UnitPage({ id }: { id: string }) {
  const unit = useQuery(`unit ${id}`, (signal) => get("/units/{unit}", { unit: id }, signal));
  const events = useQuery(`unit events ${id}`, (signal) => get("/events", { daemon: id, limit: 300 }, signal));
  const nodes = useQuery("node names", (signal) => all("/nodes", "nodes", { state: "live" }, signal), 15_000);
  const u = unit.data?.unit;
  if (!u) return <><h1>{id}</h1><Waiting problem={unit.problem} what="the unit" /></>;
  return (
    <>
      <h1>{u.unit} <State of={u.state} /></h1>
      <Refused problem={unit.problem} />
      <Now unit={u} />
      <Orders orders={u.orders} />
      <div class="actions">
        <Actions offers={unitActions(u, [...new Set(nodes.data?.rows.map((n) => n.name) ?? [])])} />
      </div>
      <Panel title="Life">{events.data ? <Life events={events.data.events} /> : <Waiting problem={events.problem} what="its history" />}</Panel>
      <Placement plan={unit.data!.plan} unit={u} />
      <Output unit={u} />
      <Panel title="Events" aside={<a href={to("events") + "?daemon=" + encodeURIComponent(id)}>all of this unit</a>}>
        {events.data ? <EventList events={events.data.events.slice(0, 40)} /> : <Waiting problem={events.problem} what="its events" />}
      </Panel>
    </>
  );
}

/** What it is, since when, why, and what happens next. */
function Now({ unit: u }: { unit: Unit }) {
  const s = u.schedule;
  return (
    <Panel title="Now">
      <Facts rows={[
        ["State", <><State of={u.state} /> for <Ago at={u.since} />{u.forced && ", forced: its former holder has not reported the end"}</>],
        ["Node", u.node ? <a href={to("nodes", u.node)}>{u.node}</a> : "none"],
        ["Daemon", <a href={to("daemons", u.daemon)}>{u.daemon}</a>],
        ["Generation", <>{u.generation} <span class="quiet">– workers of an earlier one are refused by the fence</span></>],
        ["Why", u.reason],
        ["Failures in a row", u.failures ? <>{u.failures}, since <Moment at={u.failing_since} /></> : ""],
        ["Last error", u.error ? <span class="error">{u.error}</span> : ""],
        ["Next", u.forced_at ? <>drained <Until at={u.deadline!} over="now" />, or taken away <Until at={u.forced_at} over="now" /></> : u.deadline ? <>it must have begun <Until at={u.deadline} over="now" />, or another node gets it</> : u.retry_at ? <>the run is started again <Until at={u.retry_at} over="now" /></> : s?.retry_at ? <>the call is repeated <Until at={s.retry_at} over="now" /></> : s?.next ? <>called <Until at={s.next} over="now" /></> : ""],
        ["Schedule", s ? <code>{s.schedule}</code> : ""],
        ["Last call", s?.last ? <>due <Moment at={s.last.due} />, {s.last.error ? <span class="error">failed: {s.last.error}</span> : "succeeded"}</> : ""],
      ]} />
    </Panel>
  );
}

function Placement({ plan, unit }: { plan: Explanation; unit: Unit }) {
  const why = plan.why;
  return (
    <Panel title="Placement: why this node">
      <p>
        {plan.decision?.step ? <>The leader is about to <strong>{plan.decision.step}</strong> it{plan.decision.to?.name ? <> to {plan.decision.to.name}</> : null}. </> : null}
        {unit.node ? <>It is on {unit.node}. </> : null}
        {plan.next?.name ? <>If it were free, <a href={to("nodes", plan.next.name)}>{plan.next.name}</a> would get it: {ruleOf(why)}.</> : <>No node would get it: {ruleOf(why)}.</>}
      </p>
      {why.left && <p class="quiet">Before: {why.left}.</p>}
      {plan.declared.by && (
        <p class="quiet">
          The spec in force is that of {plan.declared.by.name || "no node"}, revision {plan.declared.revision}
          {plan.declared.why ? `, because ${plan.declared.why}` : ""}; {several(plan.declared.same, "other node declares", "other nodes declare")} the same.
          {plan.declared.others.map((o) => ` ${o.node.name} declares another: ${o.what}.`)}
        </p>
      )}
      <Table what="candidates" rows={plan.nodes} id={(r) => r.node.incarnation} prefix="c" sort="score" columns={[
        { name: "node", value: (r) => r.node.name, show: (r) => <a href={to("nodes", r.node.name)}>{r.node.name}</a> },
        { name: "eligible", value: (r) => (r.eligible ? "yes" : "no"), show: (r) => (r.eligible ? <State of="live">yes</State> : <State of="removed">no</State>) },
        { name: "state", value: (r) => r.state, show: (r) => <State of={r.state} /> },
        { name: "load", value: (r) => r.load, show: (r) => decimal(r.load), numeric: true },
        { name: "score", value: (r) => (r.eligible ? r.score : 1e18), show: (r) => (r.eligible ? decimal(r.score) : "–"), numeric: true },
        { name: "units of the daemon", value: (r) => r.units, numeric: true },
        { name: "in its zone", value: (r) => r.zone_units, numeric: true },
        { name: "verdict", value: (r) => r.verdict },
      ]} />
    </Panel>
  );
}

function ruleOf(why: Explanation["why"]): string {
  let text = why.rule;
  if (why.note) text += (why.rule === "quarantined" ? ": " : " ") + why.note;
  if (why.value !== undefined && why.runner_up_value !== undefined) text += ` (${decimal(why.value)} against ${decimal(why.runner_up_value)})`;
  if (why.runner_up) text += `; the runner-up is ${why.runner_up}`;
  return text;
}

interface OutputPage {
  node: string;
  generation: number;
  run: number;
  ended_at?: string;
  result?: string;
  dropped: number;
  lines: { number: number; at: string; stream: string; text: string; truncated?: boolean }[];
}

/** The latest output of the command that the unit runs. Other units have none. */
function Output({ unit }: { unit: Unit }) {
  const url = new URL("node/v1/output?" + new URLSearchParams({ unit: unit.unit, tail: "200" }), document.baseURI.replace(/[#?].*$/, "")).href;
  const { data, problem } = useQuery(`output ${unit.unit}`, async (signal) => (await (await call(url, { signal })).json()) as OutputPage);
  const end = useRef<HTMLPreElement>(null);
  const last = data?.lines.at(-1)?.number;
  useEffect(() => {
    if (end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [last]);
  if (!data && problem?.code === "E1401") return null; // a program that embeds the API has no such call
  if (!data) return problem ? <Panel title="Output"><p class="quiet">There is none: {problem.detail}{problem.hint ? `; ${problem.hint}` : ""}.</p></Panel> : null;
  return (
    <Panel title="Output" aside={<span class="quiet">{data.node ? `run ${data.run} of generation ${data.generation} on ${data.node}` : ""}{data.ended_at ? ", ended" : ""}</span>}>
      {data.dropped > 0 && <p class="quiet">{several(data.dropped, "earlier line is", "earlier lines are")} kept no longer.</p>}
      <pre class="output" ref={end} tabIndex={0} aria-label="Output of the unit">
        {data.lines.map((l) => <span key={l.number} class={l.stream}><span class="quiet">{l.at.slice(11, 23)} </span>{l.text}{l.truncated ? " …" : ""}{"\n"}</span>)}
        {data.lines.length === 0 && <span class="quiet">Nothing yet.</span>}
      </pre>
      {data.result && <p class="error">The run failed: {data.result}</p>}
    </Panel>
  );
}
