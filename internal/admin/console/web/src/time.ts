// Time as the store's clock has it: what the pages show are its stamps, and this computer's clock may be wrong.
import { useEffect, useState } from "preact/hooks";

let offset = 0; // ms that the store's clock is ahead

/** Notes what the store's clock said just now. The least delayed answer counts for most. */
export function setStoreTime(at: string) {
  const seen = Date.parse(at) - Date.now();
  if (!Number.isFinite(seen)) return;
  offset = Math.abs(seen - offset) > 5000 || seen > offset ? seen : offset + (seen - offset) / 8;
}

export const storeNow = () => Date.now() + offset;

/** The present time by the store's clock, again each second. */
export function useNow(every = 1000): number {
  const [now, setNow] = useState(storeNow());
  useEffect(() => {
    const timer = setInterval(() => setNow(storeNow()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

/** A duration in at most two units: 420 ms, 41.2 s, 11 min 3 s, 2 d 4 h. */
export function span(ms: number): string {
  const sign = ms < 0 ? "−" : "";
  ms = Math.abs(ms);
  if (ms < 1000) return `${sign}${Math.round(ms)} ms`;
  if (ms < 59_950) return `${sign}${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const i = units.findIndex(([size]) => s >= size);
  const [size, name] = units[i]!;
  const [small, smaller] = units[i + 1]!;
  const more = Math.floor((s % size) / small);
  return `${sign}${Math.floor(s / size)} ${name}${more ? ` ${more} ${smaller}` : ""}`;
}

/** A duration without fractions, for what ticks. */
export function ticks(ms: number): string {
  return Math.abs(ms) < 60_000 ? `${Math.floor(Math.max(ms, 0) / 1000)} s` : span(ms);
}

/** A moment for people, in the time zone of this computer. */
export function clock(at: string | null | undefined, seconds = true): string {
  if (!at) return "–";
  const d = new Date(at);
  const two = (n: number) => String(n).padStart(2, "0");
  const time = `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? ":" + two(d.getSeconds()) : ""}`;
  const today = new Date(storeNow());
  return d.toDateString() === today.toDateString() ? time : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}`;
}
