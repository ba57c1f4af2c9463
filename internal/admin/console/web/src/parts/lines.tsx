// Lines over time: what the cluster has measured in the last hour. Each value is shown with its unit.
import { useState } from "preact/hooks";
import type { Trend, Trends } from "../api";
import { count, decimal, several } from "../format";
import { useQuery } from "../query";
import { clock, span } from "../time";
import { Panel } from "./basic";

/** How a value is written: by the unit that the server gives, such as s, {job} or {job}/s. */
function writer(unit: string): (v: number) => string {
  const [, thing, per] = /^\{(\w+)\}(\/s)?$/.exec(unit) ?? [];
  if (per) return (v) => `${decimal(v)} ${thing}s/s`;
  if (thing) return (v) => (Number.isInteger(v) ? several(v, thing) : `${decimal(v)} ${thing}s`);
  return unit === "s" ? (v) => span(v * 1000) : (v) => `${decimal(v)} ${unit}`;
}

/** What one plot shows: a measure, its series in order, and which of them should be zero. */
export interface Plot {
  title: string;
  name: string;
  series?: string[];
  words?: Record<string, string>;
  bad?: string;
}

interface Line {
  word: string;
  colour: string;
  points: (number | null)[];
}

function linesOf(plot: Plot, trends: Trend[]): Line[] {
  const found = trends.filter((t) => t.name === plot.name && (!plot.series || plot.series.includes(t.series ?? "")));
  if (plot.series) found.sort((a, b) => plot.series!.indexOf(a.series ?? "") - plot.series!.indexOf(b.series ?? ""));
  const colours = ["l0", "l1", "l3", "l4", "l5"];
  return found.map((t) => ({
    word: plot.words?.[t.series ?? ""] ?? t.series ?? plot.title.toLowerCase(),
    colour: (t.series ?? "") === plot.bad ? "l2" : colours.shift() ?? "l5",
    points: t.points,
  }));
}

const width = 600;
const height = 80;

/** One plot: lines with one scale from 0, the values at the pointer or the newest ones, and a table of them. */
export function Lines({ plot, trends, at, step }: { plot: Plot; trends: Trend[]; at: number; step: number }) {
  const [pointed, setPointed] = useState<number | null>(null);
  const lines = linesOf(plot, trends);
  const size = lines[0]?.points.length ?? 0;
  const begun = Math.min(...lines.map((l) => l.points.findIndex((v) => v !== null)).filter((i) => i >= 0), size);
  if (begun === size) return <figure class="lines"><figcaption>{plot.title}</figcaption><p class="quiet">Nothing of this kind was measured in the last hour.</p></figure>;
  const write = writer(trends.find((t) => t.name === plot.name)!.unit);
  const first = Math.min(begun, size - Math.min(size, Math.ceil(120 / step))); // two minutes at least
  const last = size - 1;
  const top = Math.max(...lines.flatMap((l) => l.points.slice(first).map((v) => v ?? 0)));
  const x = (i: number) => ((i - first) / Math.max(last - first, 1)) * width;
  const y = (v: number) => height - 2 - (v / (top || 1)) * (height - 4);
  const path = (points: (number | null)[]) => points.map((v, i) => {
    if (v === null || i < first) return "";
    const here = `${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    return (points[i - 1] ?? null) === null || i === first ? `M${(x(i) - 3).toFixed(1)} ${y(v).toFixed(1)}L${here}` : `L${here}`; // a single one is a dash
  }).join("");
  const moment = (i: number) => clock(new Date(at - (last - i) * step * 1000).toISOString());
  const shown = pointed === null ? null : Math.min(Math.max(pointed, first), last);
  const value = (l: Line) => {
    const v = shown === null ? l.points.findLast((p) => p !== null) : l.points[shown];
    return v === null || v === undefined ? "–" : write(v);
  };
  const point = (e: PointerEvent) => {
    const box = (e.currentTarget as Element).getBoundingClientRect();
    setPointed(first + Math.round(((e.clientX - box.left) / box.width) * (last - first)));
  };
  return (
    <figure class="lines">
      <figcaption>{plot.title} <span class="quiet">{shown === null ? `of the last ${span((size - first) * step * 1000)}` : `at ${moment(shown)}`}</span></figcaption>
      <div class="plot">
        <div class="scale" aria-hidden="true"><span>{top > 0 && write(top)}</span><span>{write(0)}</span></div>
        <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={`${plot.title}, at most ${write(top)}: ${lines.map((l) => `${l.word} ${value(l)}`).join(", ")}`}
          onPointerMove={point} onPointerLeave={() => setPointed(null)}>
          <rect class="none" x="0" y="0" width={width} height={height} />
          {lines.map((l) => <path key={l.word} class={`line ${l.colour}`} d={path(l.points)} vector-effect="non-scaling-stroke" />)}
          {shown !== null && <path class="cursor" d={`M${x(shown).toFixed(1)} 0V${height}`} vector-effect="non-scaling-stroke" />}
        </svg>
        <div class="axis"><span>{moment(first)}</span><span>{moment(last)}</span></div>
      </div>
      <ul class="legend">{lines.map((l) => <li key={l.word}><span class={`swatch ${l.colour}`} aria-hidden="true" /> {l.word}: {value(l)}</li>)}</ul>
      <Numbers lines={lines} first={first} last={last} moment={moment} write={write} title={plot.title} />
    </figure>
  );
}

/** The values as a table: at most sixty of them. */
function Numbers({ lines, first, last, moment, write, title }: { lines: Line[]; first: number; last: number; moment: (i: number) => string; write: (v: number) => string; title: string }) {
  const [open, setOpen] = useState(false);
  const every = Math.max(1, Math.ceil((last - first + 1) / 60));
  const rows = open ? Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => last - i * every) : [];
  return (
    <details onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>As a table</summary>
      {open && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`${title}, as a table`}>
          <table>
            <thead><tr><th scope="col" class="plain">time</th>{lines.map((l) => <th key={l.word} scope="col" class="plain number">{l.word}</th>)}</tr></thead>
            <tbody>{rows.map((i) => <tr key={i}><td>{moment(i)}</td>{lines.map((l) => <td key={l.word} class="number">{l.points[i] === null || l.points[i] === undefined ? "–" : write(l.points[i]!)}</td>)}</tr>)}</tbody>
          </table>
        </div>
      )}
    </details>
  );
}

/** A panel with what was measured in the last hour. A server that measures nothing has none. */
export function LastHour({ of, read, plots }: { of: string; read: (signal: AbortSignal) => Promise<Trends>; plots: Plot[] }) {
  const { data } = useQuery(`trends ${of}`, read, 10_000);
  if (!data?.trends || !data.at) return null;
  const at = Date.parse(data.at);
  const missing = data.missing.length ? `; ${data.missing.slice(0, 3).join(", ")}${data.missing.length > 3 ? ` and ${count(data.missing.length - 3)} more` : ""} did not answer` : "";
  return (
    <Panel title="The last hour" aside={<span class="quiet">measured by {several(data.nodes, "process", "processes")}{missing}</span>}>
      {data.trends.length === 0 ? <p class="quiet">The first values come within ten seconds.</p> : (
        <div class="charts">{plots.map((p) => <Lines key={p.title} plot={p} trends={data.trends!} at={at} step={data.step_seconds} />)}</div>
      )}
    </Panel>
  );
}
