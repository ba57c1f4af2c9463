import { all } from "../api";
import { useQuery } from "../query";
import { Ago, Waiting } from "../parts/basic";
import { Table } from "../parts/table";

/** What operators have ordered and is in force or waits for the leader. */
export function CommandsPage() {
  const { data, problem } = useQuery("commands", (signal) => all("/commands", "commands", {}, signal));
  return (
    <>
      <h1>Open commands</h1>
      {data ? (
        <Table what="commands" rows={data.rows} id={(c) => c.id} empty="No command is in force, and none waits for the leader." columns={[
          { name: "command", value: (c) => c.kind },
          { name: "about", value: (c) => about(c.args) },
          { name: "given", value: (c) => c.created_at, show: (c) => <><Ago at={c.created_at} /> ago</> },
          { name: "by", value: (c) => c.actor },
          { name: "reason", value: (c) => c.reason },
          { name: "result", value: (c) => c.result || "waits for the leader" },
          { name: "ID", value: (c) => c.id, show: (c) => <code>{c.id}</code> },
        ]} />
      ) : (
        <Waiting problem={problem} what="the commands" />
      )}
    </>
  );
}

function about(args: unknown): string {
  if (!args || typeof args !== "object") return "";
  return Object.entries(args as Record<string, unknown>).map(([k, v]) => `${k} ${String(v)}`).join(", ");
}
