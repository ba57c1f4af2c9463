import { all, get, type Daemon, type Unit } from "../api";
import { daemonActions, rebalance } from "../actions";
import { count, several } from "../format";
import { overview } from "../live";
import { useQuery } from "../query";
import { to, useParam } from "../route";
import { useStore } from "../store";
import { Actions } from "../parts/action";
import { Ago, Orders, Panel, Refused, State, Until, Waiting } from "../parts/basic";
import { EventList } from "../parts/events";
import { Table, type Column } from "../parts/table";
import { Choice } from "./overview";

const columns: Column<Daemon>[] = [
  { name: "daemon", value: (d) => d.daemon, show: (d) => <a href={to("daemons", d.daemon)}>{d.daemon}</a> },
  { name: "units", value: (d) => d.units, numeric: true },
  { name: "states", value: (d) => Object.keys(d.states).join(" "), show: (d) => <States of={d} /> },
  { name: "nodes", value: (d) => d.nodes, numeric: true },
  { name: "failures in a row", value: (d) => d.failures, numeric: true },
  { name: "orders", value: (d) => (d.orders ?? []).map((o) => o.kind).join(" "), show: (d) => (d.orders?.length ? d.orders.map((o) => o.kind.replace("daemon.", "")).join(", ") : "–") },
];

function States({ of: d }: { of: Daemon }) {
  return <>{Object.entries(d.states).map(([s, n]) => <State key={s} of={s}>{count(n)} {s}</State>)}</>;
}

export const unitColumns: Column<Unit>[] = [
  { name: "unit", value: (u) => u.unit, show: (u) => <a href={to("units", u.unit)}>{u.unit}</a> },
  { name: "state", value: (u) => u.state, show: (u) => <State of={u.state} /> },
  { name: "node", value: (u) => u.node, show: (u) => (u.node ? <a href={to("nodes", u.node)}>{u.node}</a> : "–") },
  { name: "generation", value: (u) => u.generation, show: (u) => u.generation, numeric: true },
  { name: "since", value: (u) => u.since, show: (u) => <Ago at={u.since} /> },
  { name: "failures", value: (u) => u.failures, numeric: true },
  { name: "next", value: (u) => u.retry_at, show: (u) => (u.retry_at ? <>starts <Until at={u.retry_at} over="now" /></> : u.schedule?.next ? <>due <Until at={u.schedule.next} over="now" /></> : "–") },
  { name: "reason", value: (u) => u.error || u.reason, show: (u) => <span class="clip" title={u.error || u.reason}>{u.error || u.reason || "–"}</span> },
];

export function DaemonsPage() {
  const [as, setAs] = useParam("as", "daemons");
  const [which, setWhich] = useParam("show", "declared");
  return (
    <>
      <h1>Daemons</h1>
      <div class="actions">
        <Choice label="List" options={["daemons", "units"]} value={as} onChange={setAs} />
        <Choice label="Which" options={["declared", "all"]} value={which} onChange={setWhich} />
        <Actions offers={[{ label: "Rebalance …", action: rebalance }]} />
      </div>
      {as === "units" ? <Units all={which === "all"} /> : <Daemons all={which === "all"} />}
    </>
  );
}

function Daemons({ all: everything }: { all: boolean }) {
  const { data, problem } = useQuery(`daemons ${everything}`, (signal) => all("/daemons", "daemons", { all: everything }, signal));
  if (!data) return <Waiting problem={problem} what="the daemons" />;
  return <Table what="daemons" rows={data.rows} columns={columns} id={(d) => d.daemon} sort="daemon" empty="No node declares a daemon." />;
}

function Units({ all: everything }: { all: boolean }) {
  const units = Object.values(useStore(overview)?.units ?? {}).reduce((a, b) => a + b, 0);
  const { data, problem } = useQuery(`units ${everything}`, (signal) => all("/units", "units", { all: everything }, signal), units > 1000 ? 15_000 : 1500);
  if (!data) return <Waiting problem={problem} what="the units" />;
  return <Table what="units" rows={data.rows} columns={unitColumns} id={(u) => u.unit} sort="unit" partial={data.complete ? "" : "there are more"} />;
}

export function DaemonPage({ id }: { id: string }) {
  const daemon = useQuery(`daemon ${id}`, (signal) => get("/daemons/{daemon}", { daemon: id }, signal));
  const units = useQuery(`daemon units ${id}`, (signal) => all("/units", "units", { daemon: id, all: true }, signal));
  const events = useQuery(`daemon events ${id}`, (signal) => get("/events", { daemon: id, limit: 30 }, signal));
  const d = daemon.data?.daemon;
  if (!d) return <><h1>{id}</h1><Waiting problem={daemon.problem} what="the daemon" /></>;
  const paused = (d.orders ?? []).some((o) => o.kind === "daemon.pause");
  return (
    <>
      <h1>{d.daemon}</h1>
      <Refused problem={daemon.problem} />
      <p><States of={d} /> <span class="quiet">{several(d.units, "unit")} on {several(d.nodes, "node")}{d.failures ? `, ${several(d.failures, "failure")} in a row` : ""}</span></p>
      <Orders orders={d.orders} />
      <div class="actions"><Actions offers={daemonActions(d.daemon, paused)} /></div>
      <Panel title="Units">
        {units.data ? <Table what="units" rows={units.data.rows} id={(u) => u.unit} sort="unit" columns={unitColumns} /> : <Waiting problem={units.problem} what="its units" />}
      </Panel>
      <Panel title="Events" aside={<a href={to("events") + "?daemon=" + encodeURIComponent(id)}>all of this daemon</a>}>
        {events.data ? <EventList events={events.data.events} /> : <Waiting problem={events.problem} what="its events" />}
      </Panel>
    </>
  );
}
