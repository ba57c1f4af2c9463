import { all, get, type Node, type Unit } from "../api";
import { nodeActions } from "../actions";
import { decimal, version } from "../format";
import { overview } from "../live";
import { useQuery } from "../query";
import { to, useParam } from "../route";
import { useStore } from "../store";
import { Actions } from "../parts/action";
import { Ago, Bar, Facts, Moment, Orders, Panel, Refused, State, Waiting } from "../parts/basic";
import { EventList } from "../parts/events";
import { Table, type Column } from "../parts/table";
import { Choice } from "./overview";
import { unitColumns } from "./daemons";

const columns: Column<Node>[] = [
  { name: "name", value: (n) => n.name, show: (n) => <a href={to("nodes", n.state === "removed" ? n.id : n.name)}>{n.name}</a> },
  { name: "state", value: (n) => n.state, show: (n) => <State of={n.state} /> },
  { name: "leads", value: (n) => (n.leader ? "leader" : ""), show: (n) => (n.leader ? <strong>★ leader</strong> : n.never_lead ? <span class="quiet">never</span> : "–") },
  { name: "units", value: (n) => n.units, numeric: true },
  { name: "load", value: (n) => n.load, numeric: true, show: (n) => <Load node={n} /> },
  { name: "heartbeat", value: (n) => n.last_heartbeat_at, show: (n) => <><Ago at={n.last_heartbeat_at} /> ago</> },
  { name: "orders", value: (n) => (n.orders ?? []).map((o) => o.kind).join(" "), show: (n) => (n.orders?.length ? n.orders.map((o) => o.kind.replace("node.", "")).join(", ") : "–") },
  { name: "group", value: (n) => n.group },
  { name: "zone", value: (n) => n.labels.zone },
  { name: "version", value: (n) => n.version, show: (n) => <span class="clip" title={n.version}>{version(n.version) || "–"}</span> },
  { name: "address", value: (n) => n.address },
  { name: "joined", value: (n) => n.registered_at, show: (n) => <><Ago at={n.registered_at} /> ago</> },
];

function Load({ node: n }: { node: Node }) {
  if (!n.max_weight) return <>{decimal(n.load)}</>;
  return <><Bar part={n.load / n.max_weight} label={`${decimal(n.load)} of ${n.max_weight}`} /> {decimal(n.load)} of {n.max_weight}</>;
}

export function NodesPage() {
  const [which, setWhich] = useParam("show", "present");
  const nodes = useStore(overview)?.nodes ?? {};
  const many = Object.values(nodes).reduce((a, b) => a + b, 0) > 200;
  const { data, problem } = useQuery(`nodes ${which}`, (signal) => all("/nodes", "nodes", { all: which === "all" }, signal), many ? 10_000 : 1500);
  return (
    <>
      <h1>Nodes</h1>
      {data ? (
        <Table what="nodes" rows={data.rows} columns={columns} id={(n) => n.incarnation} sort="name"
          controls={<Choice label="Which nodes" options={["present", "all"]} value={which} onChange={setWhich} />}
          empty="No node is registered in this store." />
      ) : (
        <Waiting problem={problem} what="the nodes" />
      )}
    </>
  );
}

export function NodePage({ name }: { name: string }) {
  const node = useQuery(`node ${name}`, (signal) => get("/nodes/{node}", { node: name }, signal));
  const units = useQuery(`node units ${name}`, (signal) => all("/units", "units", { node: name }, signal));
  const events = useQuery(`node events ${name}`, (signal) => get("/events", { node: name, limit: 30 }, signal));
  const leader = useStore(overview)?.leader;
  const n = node.data?.node;
  if (!n) return <><h1>{name}</h1><Waiting problem={node.problem} what="the node" /></>;
  return (
    <>
      <h1>{n.name} <State of={n.state} />{n.leader && <span class="state plain">★ leader</span>}</h1>
      <Refused problem={node.problem} />
      {n.reason && <p>{n.reason}</p>}
      <Orders orders={n.orders} />
      <div class="actions">
        <Actions offers={nodeActions(n, leader)} />
      </div>
      <Panel title="Node">
        <Facts rows={[
          ["Last heartbeat", <><Ago at={n.last_heartbeat_at} /> ago</>],
          ["Joined", <><Moment at={n.registered_at} /> (<Ago at={n.registered_at} /> ago)</>],
          ["Units", String(n.units)],
          ["Load", <Load node={n} />],
          ["Capacity", decimal(n.capacity)],
          ["Group", n.group || "–"],
          ["Version", n.version || "–"],
          ["Address", n.address || "–"],
          ["Labels", Object.entries(n.labels).map(([k, v]) => `${k}=${v}`).join(", ") || "–"],
          ["Leads", n.leader ? "yes" : n.never_lead ? "never" : "no"],
          ["Takes units", n.no_daemons ? "no" : "yes"],
          ["Daemons that it can run", n.kinds.join(", ") || "–"],
          ["ID", <code>{n.id}</code>],
          ["Incarnation", <code>{n.incarnation}</code>],
        ]} />
      </Panel>
      <Panel title="Units on this node">
        {units.data ? <Table<Unit> what="units" rows={units.data.rows} id={(u) => u.unit} sort="unit" columns={unitColumns.filter((c) => c.name !== "node")} empty="It has no units." /> : <Waiting problem={units.problem} what="its units" />}
      </Panel>
      <Panel title="Events" aside={<a href={to("events") + "?node=" + encodeURIComponent(name)}>all of this node</a>}>
        {events.data ? <EventList events={events.data.events} /> : <Waiting problem={events.problem} what="its events" />}
      </Panel>
    </>
  );
}
