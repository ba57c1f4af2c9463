// A table that sorts, filters and exports. What it shows is in the URL. Only the rows in sight are in the page, so ten
// thousand of them cost as much as fifty.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, several } from "../format";
import { useParam } from "../route";

export interface Column<R> {
  name: string;
  /** What the column is sorted by and what is exported. */
  value: (row: R) => string | number | boolean | null | undefined;
  /** What is shown instead of the value. */
  show?: (row: R) => ComponentChildren;
  numeric?: boolean;
}

interface Props<R> {
  /** What the rows are, in the plural. It names the exported file. */
  what: string;
  rows: R[];
  columns: Column<R>[];
  id: (row: R) => string;
  /** Shown beside the filter. */
  controls?: ComponentChildren;
  /** Distinguishes the parameters of two tables of one page. */
  prefix?: string;
  /** "-name" is descending. */
  sort?: string;
  empty?: string;
  /** Says that the rows are not all that there are. */
  partial?: string;
  /** Leaves the filter and the exports out. */
  bare?: boolean;
}

const rowHeight = 34;
const windowed = 150; // rows; fewer are all in the page
const beyond = 15; // rows above and below those in sight

export function Table<R>(p: Props<R>) {
  const prefix = p.prefix ?? "";
  const [filter, setFilter] = useParam(prefix + "q");
  const [sort, setSort] = useParam(prefix + "sort", p.sort ?? "");
  const rows = useMemo(() => arranged(p.rows, p.columns, filter, sort), [p.rows, p.columns, filter, sort]);
  return (
    <div class="table">
      {!p.bare && (
        <div class="controls">
          <input type="search" class="filter" value={filter} onInput={(e) => setFilter(e.currentTarget.value)}
            placeholder={`filter ${p.what}  ( / )`} aria-label={`Filter ${p.what}`} spellcheck={false} />
          {p.controls}
          <span class="quiet" role="status">
            {rows.length === p.rows.length ? several(rows.length, p.what.replace(/s$/, ""), p.what) : `${count(rows.length)} of ${several(p.rows.length, p.what.replace(/s$/, ""), p.what)}`}
            {p.partial ? `, ${p.partial}` : ""}
          </span>
          <span class="exports">
            <button type="button" class="small" onClick={() => save(p, rows, "csv")}>CSV</button>
            <button type="button" class="small" onClick={() => save(p, rows, "json")}>JSON</button>
          </span>
        </div>
      )}
      {rows.length === 0 ? (
        <p class="quiet empty">{p.rows.length ? `No ${p.what} match the filter.` : (p.empty ?? `There are no ${p.what}.`)}</p>
      ) : (
        <Body {...p} rows={rows} sort={sort} setSort={setSort} />
      )}
    </div>
  );
}

function Body<R>({ rows, columns, id, what, sort, setSort }: Props<R> & { sort: string; setSort: (s: string) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(800);
  const long = rows.length > windowed;
  useLayoutEffect(() => {
    if (long && box.current) setHeight(box.current.clientHeight);
  }, [long]);
  const first = long ? Math.max(0, Math.min(Math.floor(top / rowHeight) - beyond, rows.length - 1)) : 0;
  const end = long ? Math.min(rows.length, Math.ceil((top + height) / rowHeight) + beyond) : rows.length;
  const shown = rows.slice(first, end);
  const name = sort.replace(/^-/, "");
  return (
    <div class={long ? "scroll long" : "scroll"} ref={box} tabIndex={0} role="region" aria-label={what}
      onScroll={long ? (e) => setTop(e.currentTarget.scrollTop) : undefined}>
      <table aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((c) => (
              <th key={c.name} scope="col" class={c.numeric ? "number" : ""} aria-sort={c.name === name ? (sort.startsWith("-") ? "descending" : "ascending") : undefined}>
                <button type="button" onClick={() => setSort(sort === c.name ? "-" + c.name : c.name)}>
                  {c.name}
                  <span aria-hidden="true" class="arrow">{c.name === name ? (sort.startsWith("-") ? "▾" : "▴") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && <tr aria-hidden="true" style={{ height: `${first * rowHeight}px` }} />}
          {shown.map((r, i) => (
            <tr key={id(r)} aria-rowindex={first + i + 2}>
              {columns.map((c) => (
                <td key={c.name} class={c.numeric ? "number" : ""}>{c.show ? c.show(r) : text(c.value(r))}</td>
              ))}
            </tr>
          ))}
          {end < rows.length && <tr aria-hidden="true" style={{ height: `${(rows.length - end) * rowHeight}px` }} />}
        </tbody>
      </table>
    </div>
  );
}

function text(v: string | number | boolean | null | undefined): string {
  if (v === null || v === undefined || v === "" || v === false) return "–";
  return typeof v === "number" ? count(v) : v === true ? "yes" : v;
}

/** The rows that have every word of the filter, in order. */
function arranged<R>(rows: R[], columns: Column<R>[], filter: string, sort: string): R[] {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  let out = rows;
  if (wanted.length) {
    out = rows.filter((r) => {
      const all = columns.map((c) => c.value(r) ?? "").join("\n").toLowerCase();
      return wanted.every((w) => all.includes(w));
    });
  }
  const by = columns.find((c) => c.name === sort.replace(/^-/, ""));
  if (!by) return out;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...out].sort((a, b) => sign * compare(by.value(a), by.value(b)));
}

type Value = string | number | boolean | null | undefined;

function compare(a: Value, b: Value): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}

function save<R>(p: Props<R>, rows: R[], kind: "csv" | "json") {
  const body = kind === "json" ? JSON.stringify(rows, null, 2) + "\n" : csv(p.columns, rows);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([body], { type: kind === "json" ? "application/json" : "text/csv" }));
  link.download = `${p.what.replace(/[^\w.-]+/g, "-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function csv<R>(columns: Column<R>[], rows: R[]): string {
  const lines = [columns.map((c) => c.name), ...rows.map((r) => columns.map((c) => c.value(r) ?? ""))];
  return lines.map((cells) => cells.map((v) => cell(String(v))).join(",")).join("\r\n") + "\r\n";
}

/** A cell in quotes if it needs them. A spreadsheet must not take a name for a formula. */
function cell(v: string): string {
  if (/^[=+@\t\r-]/.test(v) && !/^-?[\d.]+$/.test(v)) v = "'" + v;
  return /[",\r\n]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v;
}
