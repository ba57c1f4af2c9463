// The terms over time: who led when, and the gaps in which nobody did.
import type { Term } from "../api";
import { to } from "../route";
import { clock, span, storeNow } from "../time";

export interface Stretch {
  from: number;
  until: number;
  term: Term | null; // null: nobody led
}

/** Terms and gaps from the oldest to the newest. Terms come as the API has them, the newest first. */
export function stretches(terms: Term[], now: number): Stretch[] {
  const out: Stretch[] = [];
  for (const term of [...terms].reverse()) {
    if (!term.elected_at) continue;
    const from = Date.parse(term.elected_at);
    const last = out.at(-1);
    if (last && from > last.until) out.push({ from: last.until, until: from, term: null });
    out.push({ from, until: term.ended_at ? Math.min(Date.parse(term.ended_at), now) : now, term });
  }
  const last = out.at(-1);
  if (last?.term?.ended_at && last.until < now) out.push({ from: last.until, until: now, term: null });
  return out;
}

const hues = ["a", "b", "c", "d", "e", "f"];

/** Each node has a colour, by the order of names. */
export function colours(terms: Term[]): Map<string, string> {
  const names = [...new Set(terms.map((t) => t.node))].sort();
  return new Map(names.map((n, i) => [n, hues[i % hues.length]!]));
}

export function TermTimeline({ terms, over }: { terms: Term[]; over: number }) {
  const now = storeNow();
  const begin = now - over;
  const all = stretches(terms, now).filter((s) => s.until > begin);
  const colour = colours(terms);
  const width = 1000;
  const x = (at: number) => ((Math.max(at, begin) - begin) / over) * width;
  const gaps = all.filter((s) => !s.term);
  const label = `Terms of the last ${span(over)}: ${all.filter((s) => s.term).map((s) => `term ${s.term!.term_ordinal} of ${s.term!.node}`).join(", ")}; ${gaps.length ? `without a leader ${gaps.map((g) => span(g.until - g.from)).join(", ")}` : "no gap"}`;
  return (
    <div class="timeline">
      <svg viewBox={`0 0 ${width} 44`} preserveAspectRatio="none" role="img" aria-label={label}>
        <rect class="none" x="0" y="6" width={width} height="32" />
        {all.map((s) => (
          <rect key={`${s.from}`} class={s.term ? `lead ${colour.get(s.term.node)}` : "gap"} x={x(s.from)} y={s.term ? 6 : 2}
            width={Math.max(x(s.until) - x(s.from) - (s.term ? 1 : 0), 1.5)} height={s.term ? 32 : 40}>
            <title>{s.term ? `${s.term.node}, term ${s.term.term_ordinal}, ${clock(s.term.elected_at)}, held ${span(s.until - s.from)}${s.term.ended_by ? ", ended by " + s.term.ended_by : ""}` : `no leader for ${span(s.until - s.from)}`}</title>
          </rect>
        ))}
      </svg>
      <div class="axis">
        {[0, 0.25, 0.5, 0.75, 1].map((f) => <span key={f}>{f === 1 ? "now" : clock(new Date(begin + f * over).toISOString(), over < 3_600_000)}</span>)}
      </div>
      <ul class="legend">
        {[...new Set(all.flatMap((s) => (s.term ? [s.term.node] : [])))].map((name) => (
          <li key={name}><span class={`swatch ${colour.get(name)}`} aria-hidden="true" /> <a href={to("nodes", name)}>{name}</a></li>
        ))}
        {gaps.length > 0 && <li><span class="swatch gap" aria-hidden="true" /> no leader: {gaps.map((g) => span(g.until - g.from)).join(", ")}</li>}
        {gaps.length === 0 && <li class="quiet">no gap without a leader</li>}
      </ul>
    </div>
  );
}
