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
          { name: "about", value: (c) => about(c.args), show: (c) => <span class="clip" title={about(c.args)}>{about(c.args)}</span> },
          { name: "given", value: (c) => c.created_at, show: (c) => <><Ago at={c.created_at} /> ago</> },
          { name: "by", value: (c) => c.actor, show: (c) => <span title={origin(c.args)}>{c.actor}</span> },
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

/** What the API records of the person who gave a command, and of the state before it. Its events show all of it. */
const recorded = ["role", "address", "before"];

function about(args: unknown): string {
  return listed(args, (k) => !recorded.includes(k));
}

function origin(args: unknown): string {
  return listed(args, (k) => k === "role" || k === "address");
}

function listed(args: unknown, wanted: (key: string) => boolean): string {
  if (!args || typeof args !== "object") return "";
  return Object.entries(args).filter(([k]) => wanted(k)).map(([k, v]) => `${k} ${String(v)}`).join(", ");
}
