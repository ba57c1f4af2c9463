import type { Event } from "../api";
import { to } from "../route";
import { clock } from "../time";
import { State } from "./basic";

const bad = /\.(failed|failing|forced|abandoned|removed|lost|deaf|quarantined|sick|held|missed)$/;
const good = /\.(elected|active|registered|recovered|released|cleared|ended)$/;

/** The kind of an event, with a tone by what it means. */
export function Kind({ of }: { of: string }) {
  return <State of={bad.test(of) ? "warning" : good.test(of) ? "live" : "plain"}>{of}</State>;
}

/** What an operator's command is about, who gave it, and what has become of it. */
function Order({ detail }: { detail: unknown }) {
  const d = (detail ?? {}) as { actor?: string; result?: string; args?: { node?: string; daemon?: string; index?: number; key?: string; to?: string } };
  const { daemon, index, key } = d.args ?? {};
  const unit = daemon && (key ? `${daemon}~${key}` : index !== undefined ? `${daemon}/${index}` : "");
  return (
    <>
      {unit ? <a href={to("units", unit)}>{unit}</a> : daemon ? <a href={to("daemons", daemon)}>{daemon}</a> : null}
      {d.args?.node && <a href={to("nodes", d.args.node)}>{d.args.node}</a>}
      {d.args?.to && <> to <a href={to("nodes", d.args.to)}>{d.args.to}</a></>}
      {d.actor && <span class="quiet"> by {d.actor}</span>}
      <span class="quiet">: {d.result || "given"}</span>
    </>
  );
}

/** What an event is about, with links. */
export function About({ event: e }: { event: Event }) {
  if (e.kind.startsWith("operator.")) return <Order detail={e.detail} />;
  return (
    <>
      {e.unit ? <a href={to("units", e.unit)}>{e.unit}</a> : e.daemon ? <a href={to("daemons", e.daemon)}>{e.daemon}</a> : null}
      {e.unit && e.generation > 0 && <span class="quiet"> gen {e.generation}</span>}
      {(e.unit || e.daemon) && e.node ? " on " : ""}
      {e.node && <a href={to("nodes", e.node)}>{e.node}</a>}
      {e.kind.startsWith("leader.") && e.term_ordinal ? <span class="quiet"> term {e.term_ordinal}</span> : null}
    </>
  );
}

/** Events without controls, the newest first. */
export function EventList({ events, none }: { events: Event[]; none?: string }) {
  if (!events.length) return <p class="quiet">{none ?? "No events yet."}</p>;
  return (
    <ol class="events">
      {events.map((e) => (
        <li key={e.seq}>
          <a class="time" href={to("events", String(e.seq))} title={`event ${e.seq}, ${e.at}`}>{clock(e.at)}</a>
          <Kind of={e.kind} />
          <span><About event={e} />{e.reason && <span class="quiet"> — {e.reason}</span>}</span>
        </li>
      ))}
    </ol>
  );
}
