// The life of a unit: on which node each of its runs was, and in which state.
import type { Event } from "../api";
import { to } from "../route";
import { clock, span, storeNow } from "../time";

export interface Phase {
  state: "assigning" | "active" | "revoking";
  from: number;
  until: number;
}

export interface Run {
  generation: number;
  node: string;
  phases: Phase[];
  end: string; // the event that ended it; empty if it goes on
}

const enters: Record<string, Phase["state"]> = {
  "assignment.assigned": "assigning", "assignment.postponed": "assigning",
  "assignment.active": "active", "assignment.resumed": "active", "assignment.recovered": "active",
  "assignment.revoking": "revoking",
};
const ends = new Set(["assignment.deleted", "assignment.failed", "assignment.forced"]);

/** The runs of a unit from its events, which come in any order. */
export function runs(events: Event[], now: number): Run[] {
  const out: Run[] = [];
  for (const e of [...events].sort((a, b) => a.seq - b.seq)) {
    if (!e.at || !e.generation) continue;
    const at = Date.parse(e.at);
    let run = out.findLast((r) => r.generation === e.generation);
    const state = enters[e.kind];
    if (!run && state) {
      const before = out.at(-1);
      if (before && !before.end) close(before, at, "");
      run = { generation: e.generation, node: e.node, phases: [], end: "" };
      out.push(run);
    }
    if (!run) continue;
    if (state && run.phases.at(-1)?.state !== state) {
      const last = run.phases.at(-1);
      if (last) last.until = at;
      run.phases.push({ state, from: at, until: now });
    } else if (ends.has(e.kind) && !run.end) {
      close(run, at, e.kind.replace("assignment.", "") + (e.reason ? `: ${e.reason}` : ""));
    }
  }
  return out;
}

function close(run: Run, at: number, end: string) {
  const last = run.phases.at(-1);
  if (last) last.until = at;
  run.end = end || "the next generation";
}

export function Life({ events }: { events: Event[] }) {
  const now = storeNow();
  const all = runs(events, now);
  if (!all.length) return <p class="quiet">The history has no run of it.</p>;
  const begin = Math.min(...all.flatMap((r) => r.phases.map((p) => p.from)));
  const over = Math.max(now - begin, 1000);
  const nodes = [...new Set(all.map((r) => r.node))].sort();
  const width = 1000;
  const x = (at: number) => ((at - begin) / over) * width;
  const label = `Runs of the last ${span(over)}: ` + all.map((r) => `generation ${r.generation} on ${r.node}`).join(", ");
  return (
    <div class="life">
      {nodes.map((node) => (
        <div class="lane" key={node}>
          <a href={to("nodes", node)}>{node}</a>
          <svg viewBox={`0 0 ${width} 22`} preserveAspectRatio="none" role="img" aria-label={node === nodes[0] ? label : `Runs on ${node}`}>
            <rect class="none" x="0" y="2" width={width} height="18" />
            {all.filter((r) => r.node === node).flatMap((r) =>
              r.phases.map((p) => (
                <rect key={`${r.generation} ${p.from}`} class={`phase ${p.state}`} x={x(p.from)} y="2" width={Math.max(x(p.until) - x(p.from), 1.5)} height="18">
                  <title>{`generation ${r.generation}: ${p.state} on ${node} at ${clock(new Date(p.from).toISOString())} for ${span(p.until - p.from)}${r.end ? `, ended: ${r.end}` : ""}`}</title>
                </rect>
              )),
            )}
          </svg>
        </div>
      ))}
      <div class="lane"><span /><div class="axis">{[0, 0.5, 1].map((f) => <span key={f}>{f === 1 ? "now" : clock(new Date(begin + f * over).toISOString())}</span>)}</div></div>
      <ul class="legend">
        {(["assigning", "active", "revoking"] as const).map((s) => <li key={s}><span class={`swatch phase-${s}`} aria-hidden="true" /> {s}</li>)}
      </ul>
    </div>
  );
}
