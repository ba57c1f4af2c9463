import { useEffect, useRef, useState } from "preact/hooks";
import { get, Refusal, type Event, type Problem } from "../api";
import { isPaused, pulse } from "../live";
import { useQuery } from "../query";
import { setParams, to, useParam } from "../route";
import { clock } from "../time";
import { Facts, Panel, Refused, Waiting } from "../parts/basic";
import { About, Kind } from "../parts/events";
import { Table } from "../parts/table";
import { Choice } from "./overview";

const kinds = ["leader.*", "node.*", "assignment.*", "operator.*", "periodic.*", "ledger.*", "brake.*"];
const periods = ["all", "15m", "1h", "24h", "168h"];
const atOnce = 200;
const mostShown = 5000;

interface Loaded {
  key: string;
  events: Event[];
  cursor: string | null;
  head: number;
  /** Of the new events that were not looked at yet: each call looks at a part of many. */
  next?: string;
}

/** The events that a filter selects, the newest first; new ones are added at the top. */
function useEvents(filter: Record<string, string>, follow: boolean) {
  const key = JSON.stringify(filter);
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const latest = useRef<Loaded | null>(null);
  latest.current = loaded;

  const fails = (error: unknown) => setProblem(error instanceof Refusal ? error.problem : { type: "", code: "", title: "", status: 0, detail: String(error) });

  useEffect(() => {
    const control = new AbortController();
    setLoaded(null);
    setProblem(null);
    get("/events", { ...filter, limit: atOnce }, control.signal).then(
      (p) => setLoaded({ key, events: p.events, cursor: p.cursor, head: p.head }),
      (error: unknown) => !control.signal.aborted && fails(error),
    );
    return () => control.abort();
  }, [key]);

  useEffect(() => {
    if (!follow) return;
    let reading = false;
    return pulse.follow(() => {
      const had = latest.current;
      if (!had || had.key !== key || reading || isPaused()) return;
      reading = true;
      get("/events", { ...filter, since: undefined, after: had.head, cursor: had.next, order: "oldest", limit: 1000 })
        .then((p) => {
          const now = latest.current;
          if (now?.key !== key) return;
          setProblem(null);
          setLoaded({ ...now, head: p.cursor === null ? p.head : now.head, next: p.cursor ?? undefined, events: [...p.events.reverse(), ...now.events].slice(0, mostShown) });
        }, fails)
        .finally(() => (reading = false));
    });
  }, [key, follow]);

  const older = async () => {
    if (!loaded?.cursor || busy) return;
    setBusy(true);
    try {
      const p = await get("/events", { ...filter, limit: 1000, cursor: loaded.cursor });
      setLoaded((now) => (now?.key === key ? { ...now, events: [...now.events, ...p.events], cursor: p.cursor } : now));
    } catch (error) {
      fails(error);
    } finally {
      setBusy(false);
    }
  };
  return { loaded, problem, older, busy };
}

export function EventsPage() {
  const [kind] = useParam("kind");
  const [node] = useParam("node");
  const [daemon] = useParam("daemon");
  const [term] = useParam("term");
  const [since, setSince] = useParam("since", "all");
  const [follow, setFollow] = useParam("follow", "on");
  const filter = { kind, node, daemon, term, since: since === "all" ? "" : since };
  const { loaded, problem, older, busy } = useEvents(filter, follow === "on");
  return (
    <>
      <h1>Events</h1>
      <form class="filters" onSubmit={(e) => e.preventDefault()}>
        <Filter name="kind" label="Kind" value={kind} list={kinds} />
        <Filter name="node" label="Node" value={node} />
        <Filter name="daemon" label="Daemon or unit" value={daemon} />
        <Filter name="term" label="Term number" value={term} />
        <div class="field"><span>Period</span><Choice label="Period" options={periods} value={since} onChange={setSince} /></div>
        <div class="field"><span>New events</span><Choice label="New events" options={["on", "off"]} value={follow} onChange={setFollow} /></div>
      </form>
      <Refused problem={problem} />
      {loaded ? (
        <Table<Event> what="events" rows={loaded.events} id={(e) => String(e.seq)} partial={loaded.cursor ? "older ones below" : ""} empty="No event matches."
          columns={[
            { name: "number", value: (e) => e.seq, numeric: true, show: (e) => <a href={to("events", String(e.seq))}>{e.seq}</a> },
            { name: "time", value: (e) => e.at, show: (e) => <time dateTime={e.at ?? ""} title={e.at ?? ""}>{clock(e.at)}</time> },
            { name: "kind", value: (e) => e.kind, show: (e) => <Kind of={e.kind} /> },
            { name: "about", value: (e) => [e.unit || e.daemon, e.node].filter(Boolean).join(" "), show: (e) => <About event={e} /> },
            { name: "reason", value: (e) => e.reason, show: (e) => <span class="clip" title={e.reason}>{e.reason || "–"}</span> },
          ]} />
      ) : (
        !problem && <Waiting problem={null} what="the events" />
      )}
      {loaded?.cursor && <p><button type="button" disabled={busy} onClick={() => void older()}>{busy ? "Reading …" : "Older events"}</button></p>}
    </>
  );
}

/** A field of the filter. It counts when it is left, or with Enter. */
function Filter({ name, label, value, list }: { name: string; label: string; value: string; list?: string[] }) {
  return (
    <label class="field">
      {label}
      <input value={value} list={list && `${name}-list`} spellcheck={false} autocomplete="off" onChange={(e) => setParams({ [name]: e.currentTarget.value.trim() })} />
      {list && <datalist id={`${name}-list`}>{list.map((v) => <option key={v} value={v} />)}</datalist>}
    </label>
  );
}

/** One event, by its number: what a link to it shows. */
export function EventPage({ seq }: { seq: number }) {
  const { data, problem } = useQuery(`event ${seq}`, (signal) => get("/events", { after: seq - 1, order: "oldest", limit: 1 }, signal), 60_000);
  const e = data?.events[0];
  if (!data) return <><h1>Event {seq}</h1><Waiting problem={problem} what="the event" /></>;
  if (!e || e.seq !== seq) return <><h1>Event {seq}</h1><p>There is no event {seq}: {seq < data.oldest ? `the oldest that is kept is ${data.oldest}.` : `the newest is ${data.head}.`}</p></>;
  return (
    <>
      <h1>Event {e.seq}</h1>
      <Panel title={<Kind of={e.kind} />}>
        <Facts rows={[
          ["When", <time dateTime={e.at ?? ""}>{e.at}</time>],
          ["About", <About event={e} />],
          ["Reason", e.reason],
          ["Generation", e.generation ? String(e.generation) : ""],
          ["Term", e.term ? <>{e.term_ordinal ?? ""} <a href={to("events") + `?term=${e.term}`}>events of the term with the number {e.term}</a></> : ""],
          ["Node ID", e.node_id ? <code>{e.node_id}</code> : ""],
          ["Incarnation", e.incarnation ? <code>{e.incarnation}</code> : ""],
          ["Detail", e.detail ? <pre class="json">{JSON.stringify(e.detail, null, 2)}</pre> : ""],
        ]} />
      </Panel>
      <p class="pager">{seq > 1 && <a href={to("events", String(seq - 1))}>← event {seq - 1}</a>} {seq < data.head && <a href={to("events", String(seq + 1))}>event {seq + 1} →</a>}</p>
    </>
  );
}
