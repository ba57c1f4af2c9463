import { all } from "../api";
import { useQuery } from "../query";
import { span } from "../time";
import { Ago, State, Waiting } from "../parts/basic";
import { Table } from "../parts/table";

/** The named locks that are held. */
export function LocksPage() {
  const { data, problem } = useQuery("locks", (signal) => all("/locks", "locks", {}, signal), 2000);
  return (
    <>
      <h1>Locks</h1>
      {data ? (
        <Table what="locks" rows={data.rows} id={(l) => l.name} empty="Nobody holds a lock. Programs take them with the package coordinator/lock." columns={[
          { name: "name", value: (l) => l.name },
          { name: "state", value: (l) => (l.overdue ? "overdue" : "held"), show: (l) => (l.overdue ? <State of="late">overdue</State> : <State of="running">held</State>) },
          { name: "holder", value: (l) => l.holder || l.owner, show: (l) => <span title={l.owner}>{l.holder || l.owner}</span> },
          { name: "renewed", value: (l) => l.renewed_at, show: (l) => <><Ago at={l.renewed_at} /> ago</> },
          { name: "time to live", value: (l) => l.ttl_ms, show: (l) => span(l.ttl_ms), numeric: true },
          { name: "renewals", value: (l) => l.renewals, numeric: true },
          { name: "number", value: (l) => l.number, show: (l) => l.number, numeric: true },
        ]} />
      ) : (
        <Waiting problem={problem} what="the locks" />
      )}
    </>
  );
}
