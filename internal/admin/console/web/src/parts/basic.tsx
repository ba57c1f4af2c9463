import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Order, Problem } from "../api";
import { subjectLink } from "../route";
import { clock, storeNow, ticks, useNow } from "../time";

// A state is a shape, a word and a colour, so that nobody depends on the colour.
const tones: Record<string, [tone: string, shape: string]> = {
  live: ["good", "●"], active: ["good", "●"], running: ["good", "●"], done: ["good", "●"], serving: ["good", "●"],
  assigning: ["busy", "◔"], revoking: ["busy", "◑"], draining: ["busy", "◑"], delayed: ["busy", "◔"], waiting: ["plain", "○"],
  late: ["warn", "▲"], warning: ["warn", "▲"], sick: ["warn", "▲"], quarantined: ["warn", "▲"], behind: ["warn", "▲"], held: ["warn", "■"], paused: ["warn", "‖"], cordoned: ["warn", "‖"], pinned: ["plain", "◆"],
  deaf: ["bad", "✕"], crashing: ["bad", "✕"], failing: ["bad", "✕"], dead: ["bad", "✕"], "sink down": ["bad", "✕"], unassigned: ["bad", "□"],
  removed: ["plain", "–"], deleted: ["plain", "–"], retired: ["plain", "–"],
};

export function State({ of, children }: { of: string; children?: ComponentChildren }) {
  const [tone, shape] = tones[of] ?? ["plain", "○"];
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{shape}</span> {children ?? of}
    </span>
  );
}

/** How long ago something was, with the moment itself on demand. */
export function Ago({ at, none = "–" }: { at: string | null | undefined; none?: string }) {
  const now = useNow();
  if (!at) return <>{none}</>;
  return <time dateTime={at} title={at}>{ticks(now - Date.parse(at))}</time>;
}

/** How long it is until something happens. */
export function Until({ at, over }: { at: string; over: string }) {
  const left = Date.parse(at) - useNow();
  return <time dateTime={at} title={at}>{left > 0 ? `in ${ticks(left)}` : over}</time>;
}

export function Moment({ at }: { at: string | null | undefined }) {
  return at ? <time dateTime={at} title={at}>{clock(at)}</time> : <>–</>;
}

export function Refused({ problem, what }: { problem: Problem | null; what?: string }) {
  if (!problem) return null;
  return (
    <div class="problem" role="alert">
      <p>
        <State of="failing">{problem.code || "error"}</State> {what ? what + ": " : ""}{problem.detail}
      </p>
      {problem.why && <p>{problem.why}</p>}
      {problem.hint && <p class="hint">{problem.hint}</p>}
    </div>
  );
}

/** What a page shows until it has read something, or why it cannot. */
export function Waiting({ problem, what }: { problem: Problem | null; what: string }) {
  return problem ? <Refused problem={problem} /> : <p class="quiet" role="status">Reading {what} …</p>;
}

export function Tile({ title, value, children, tone, href }: { title: string; value: ComponentChildren; children?: ComponentChildren; tone?: string; href?: string }) {
  const body = (
    <>
      <h3>{title}</h3>
      <p class="value">{value}</p>
      <div class="more">{children}</div>
    </>
  );
  return href ? <a class={`tile ${tone ?? ""}`} href={href}>{body}</a> : <div class={`tile ${tone ?? ""}`}>{body}</div>;
}

export function Panel({ title, children, aside, id }: { title: ComponentChildren; children: ComponentChildren; aside?: ComponentChildren; id?: string }) {
  return (
    <section class="panel" id={id}>
      <header>
        <h2>{title}</h2>
        {aside && <div class="aside">{aside}</div>}
      </header>
      {children}
    </section>
  );
}

/** Facts about one thing. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([name, v]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{v}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Subject({ of }: { of: string }) {
  const href = subjectLink(of);
  return href ? <a href={href}>{of}</a> : <>{of}</>;
}

/** Operators' standing commands about a thing. */
export function Orders({ orders }: { orders: Order[] | undefined }) {
  if (!orders?.length) return null;
  return (
    <ul class="orders">
      {orders.map((o) => (
        <li key={o.command}>
          <State of="paused">{orderWord(o)}</State> {o.subject}
          {o.to && <> on <a href={subjectLink(o.to)!}>{o.to}</a></>} for <Ago at={o.since} />
          {o.actor && <> by {o.actor}</>}
          {o.reason && <>: “{o.reason}”</>}
          {o.result && <span class="quiet"> ({o.result})</span>}
        </li>
      ))}
    </ul>
  );
}

export function orderWord(o: Order): string {
  return ({ "node.cordon": "cordoned", "node.drain": "drained", "daemon.pause": "paused", "daemon.pin": "pinned" } as Record<string, string>)[o.kind] ?? o.kind;
}

/** A text that can be copied, such as a command. */
export function Copy({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      // not allowed here: the text can still be selected
    }
  };
  return (
    <span class="copy">
      <code>{text}</code>
      {isSecureContext && (
        <button type="button" class="small" onClick={copy} aria-label={`Copy ${text}`}>{copied ? "copied" : "copy"}</button>
      )}
    </span>
  );
}

export function Bar({ part, label, tone }: { part: number; label: string; tone?: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, part)) * 100);
  return (
    <span class={`bar ${tone ?? ""}`} role="img" aria-label={label} title={label}>
      <span style={{ width: `${percent}%` }} />
    </span>
  );
}

export const age = (at: string | null | undefined) => (at ? storeNow() - Date.parse(at) : Infinity);
