// Lines over time, from what this tab has seen.
import { samples, type Sample } from "../history";
import { useStore } from "../store";
import { clock, span } from "../time";

export interface Series {
  name: string;
  value: (s: Sample) => number | null | undefined;
  /** Of something that should not be there. */
  bad?: boolean;
}

/** Up to three lines with one scale. A value is shown with its unit by format. */
export function Lines({ title, series, format }: { title: string; series: Series[]; format: (n: number) => string }) {
  const all = useStore(samples);
  const lines = series.map((s, i) => ({ name: s.name, colour: s.bad ? "l2" : `l${i}`, points: all.flatMap((x) => {
    const v = s.value(x);
    return v === null || v === undefined ? [] : [[x.at, v] as const];
  }) }));
  const first = all[0]?.at ?? 0;
  const last = all.at(-1)?.at ?? 0;
  if (last - first < 4000) return <figure class="lines"><figcaption>{title}</figcaption><p class="quiet">A line is drawn once this tab has seen some seconds.</p></figure>;
  const top = Math.max(1e-9, ...lines.flatMap((l) => l.points.map((p) => p[1])));
  const width = 600;
  const height = 80;
  const path = (points: (readonly [number, number])[]) =>
    points.map(([at, v], i) => `${i ? "L" : "M"}${(((at - first) / (last - first)) * width).toFixed(1)} ${(height - (v / top) * (height - 4) - 2).toFixed(1)}`).join("");
  const now = (l: (typeof lines)[number]) => (l.points.length ? format(l.points.at(-1)![1]) : "–");
  return (
    <figure class="lines">
      <figcaption>{title} <span class="quiet">of the last {span(last - first)}; highest {format(top === 1e-9 ? 0 : top)}</span></figcaption>
      <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${lines.map((l) => `${l.name} ${now(l)}`).join(", ")}`}>
        <rect class="none" x="0" y="0" width={width} height={height} />
        {lines.map((l) => <path key={l.name} class={`line ${l.colour}`} d={path(l.points)} vector-effect="non-scaling-stroke" />)}
      </svg>
      <div class="axis"><span>{clock(new Date(first).toISOString())}</span><span>now</span></div>
      <ul class="legend">{lines.map((l) => <li key={l.name}><span class={`swatch ${l.colour}`} aria-hidden="true" /> {l.name}: {now(l)}</li>)}</ul>
    </figure>
  );
}
