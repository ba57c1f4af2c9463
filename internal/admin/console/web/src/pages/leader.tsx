import { useRef } from "preact/hooks";
import { all, get } from "../api";
import { resign } from "../actions";
import { overview } from "../live";
import { useQuery } from "../query";
import { to, useParam } from "../route";
import { useStore } from "../store";
import { Actions } from "../parts/action";
import { Ago, Facts, Moment, Panel, Refused, State, Until, Waiting } from "../parts/basic";
import { EventList } from "../parts/events";
import { LastHour } from "../parts/lines";
import { Choice, leaderPlots, Terms, TermTable } from "./overview";

export function LeaderPage() {
  const leader = useQuery("leader", (signal) => get("/leader", {}, signal));
  const nodes = useQuery("candidates", (signal) => all("/nodes", "nodes", { state: "live" }, signal), 10_000);
  const events = useQuery("leader events", (signal) => get("/events", { kind: "leader.*", limit: 30 }, signal));
  const o = useStore(overview);
  const l = leader.data?.leader;
  const last = useRef(l); // a dialog stays open while there is no leader
  if (l) last.current = l;
  return (
    <>
      <h1>Leader</h1>
      <Refused problem={leader.problem} />
      {leader.data && !l && <p><State of="failing">No node leads.</State></p>}
      {last.current && (
        <div class="actions">
          <Actions offers={l ? [{ label: "Resign …", action: resign(l, (nodes.data?.rows ?? []).filter((n) => !n.never_lead && n.name !== l.node).map((n) => n.name)) }] : []} />
        </div>
      )}
      {l && (
        <>
          <Panel title="Now">
            <Facts rows={[
              ["Leader", <><a href={to("nodes", l.node)}>{l.node}</a> {l.expired && <State of="failing">its lease has expired</State>}</>],
              ["Term", <>{l.term_ordinal} <span class="quiet">(number {l.term})</span></>],
              ["Elected", <><Moment at={l.elected_at} />, <Ago at={l.elected_at} /> ago</>],
              ["Lease", l.expires_at ? <>ends <Until at={(o?.leader?.term === l.term && o.leader.expires_at) || l.expires_at} over="now" /> unless renewed</> : "–"],
              ["Last pass", <><Ago at={l.last_pass_at} /> ago <span class="quiet">(number {l.pass_seq})</span></>],
            ]} />
          </Panel>
        </>
      )}
      <Terms />
      <LastHour of="cluster" read={(signal) => get("/trends", {}, signal)} plots={leaderPlots} />
      <History />
      <Panel title="Events" aside={<a href={to("events") + "?kind=leader.*"}>all of leaders</a>}>
        {events.data ? <EventList events={events.data.events} /> : <Waiting problem={events.problem} what="the events" />}
      </Panel>
    </>
  );
}

const periods = ["1h", "24h", "168h", "all"];

function History() {
  const [since, setSince] = useParam("since", "24h");
  const { data, problem } = useQuery(`history ${since}`, (signal) => get("/terms", { limit: 1000, since: since === "all" ? "" : since }, signal), 3000);
  return (
    <Panel title="Who led when, and why it ended">
      {data ? (
        <TermTable terms={data.terms} controls={<Choice label="Period of the history" options={periods} value={since} onChange={setSince} />} />
      ) : (
        <Waiting problem={problem} what="the terms" />
      )}
    </Panel>
  );
}
