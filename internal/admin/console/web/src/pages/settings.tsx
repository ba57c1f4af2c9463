import { get, session, signOut } from "../api";
import { overview } from "../live";
import { useQuery } from "../query";
import { useStore } from "../store";
import { theme, themes } from "../theme";
import { Facts, Panel, Waiting } from "../parts/basic";
import { Table } from "../parts/table";
import { Choice } from "./overview";

/** A key that breaks between its words, where it does not fit into a line. */
const words = (key: string) => key.split(/(?<=[._])/).flatMap((w, i) => (i ? [<wbr />, w] : [w]));

export function SettingsPage() {
  const { data, problem } = useQuery("settings", (signal) => get("/settings", {}, signal), 60_000);
  const o = useStore(overview);
  const who = useStore(session);
  return (
    <>
      <h1>Settings</h1>
      <Panel title="This console">
        <Facts rows={[
          ["Theme", <Choice label="Theme" options={themes} value={useStore(theme)} onChange={(t) => theme.set(t as (typeof themes)[number])} />],
          ["You", who?.actor ?? ""],
          ["Roles", who?.login ? who.roles.join(", ") : ""],
          ["Session", who?.login && (who.actor || who.roles.length > 0) ? <button type="button" onClick={() => void signOut()}>Sign out</button> : ""],
        ]} />
      </Panel>
      {o && (
        <Panel title="Cluster">
          <Facts rows={[
            ["Cluster", o.cluster],
            ["Store", o.store.kind],
            ["Store identity", <code>{o.store.id}</code>],
            ["Newest event", String(o.store.head)],
          ]} />
        </Panel>
      )}
      <Panel title="Settings of the node that answers">
        {data ? (
          <Table what="settings" rows={data.settings} id={(s) => s.key} columns={[
            { name: "key", value: (s) => s.key, show: (s) => <code>{words(s.key)}</code> },
            { name: "value", value: (s) => s.value, show: (s) => <code>{s.value || "–"}</code> },
            { name: "from", value: (s) => s.origin },
            { name: "instead of", value: (s) => (s.overrides ?? []).map((o) => `${[o.layer, o.name].filter(Boolean).join(" ")}: ${o.value}`).join("; ") },
            { name: "note", value: (s) => s.note },
          ]} empty="This server shows no settings." />
        ) : (
          <Waiting problem={problem} what="the settings" />
        )}
      </Panel>
    </>
  );
}
