// What operators do. An action shows its effect in numbers before it can be given, and says afterwards what became of it.
import { useEffect, useRef, useState } from "preact/hooks";
import { address, call, post, Refusal, session, type Command, type CommandAnswer, type Move, type Problem, type Session } from "../api";
import { several } from "../format";
import { pulse } from "../live";
import { useStore } from "../store";
import { Refused, Subject } from "./basic";
import { Dialog } from "./dialog";

/** What a dry run answers, for people. */
export interface Effect {
  text: string;
  moves?: Move[];
  /** Nothing would change, so there is nothing to do. */
  none?: boolean;
}

export interface Action {
  /** On the button and as the title: "Drain emitd-0". */
  title: string;
  /** What it does, in a sentence. */
  about: string;
  /** A name that must be typed first, because nothing brings back what is lost. */
  confirm?: string;
  /** Choices of the operator, such as the node that gets a unit. Without options it is a text. */
  choices?: { name: string; label: string; options?: string[]; optional?: string }[];
  /** Whether the history keeps a reason. */
  reason?: boolean;
  preview: (o: Options) => Promise<Effect>;
  run: (o: Options, key: string) => Promise<string>;
}

export interface Options {
  reason: string;
  chosen: Record<string, string>;
}

export interface Offer {
  action: Action;
  label: string;
  danger?: boolean;
}

/** Whether the caller may change something: in the cluster, in a queue or in a subscription. */
function useRight(of: Rights): boolean {
  const who = useStore(session);
  const [mine, setMine] = useState<boolean | null>(null);
  const limited = of.queue !== undefined || of.subscription !== undefined;
  useEffect(() => {
    if (!limited || !who?.login) return;
    let current = true;
    rights(of).then((roles) => current && setMine(roles.includes("operate")), () => {});
    return () => {
      current = false;
    };
  }, [of.queue, of.subscription, who]);
  if (!who) return false;
  return who.roles.includes("operate") || (limited && mine === true);
}

export interface Rights {
  queue?: string;
  subscription?: string;
}

async function rights(of: Rights): Promise<string[]> {
  const answer = await call(address("/session", { queue: of.queue, subscription: of.subscription }));
  return ((await answer.json()) as Session).roles;
}

/**
 * Buttons for actions; none for callers who may not change anything. A dialog that is open stays as it is, whatever the
 * page offers meanwhile.
 */
export function Actions({ offers, of = {} }: { offers: Offer[]; of?: Rights }) {
  const [open, setOpen] = useState<Offer | null>(null);
  if (!useRight(of)) return null;
  return (
    <>
      {offers.map((o) => <button key={o.label} type="button" class={o.danger ? "danger" : ""} onClick={() => setOpen(o)}>{o.label}</button>)}
      {open && <ActionDialog action={open.action} danger={open.danger} onClose={() => setOpen(null)} />}
    </>
  );
}

function ActionDialog({ action, danger, onClose }: { action: Action; danger?: boolean; onClose: () => void }) {
  const [chosen, setChosen] = useState<Record<string, string>>({});
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [effect, setEffect] = useState<Effect | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [state, setState] = useState<"asking" | "running" | "done">("asking");
  const [outcome, setOutcome] = useState("");
  const key = useRef(randomKey());
  const missing = (action.choices ?? []).some((c) => !c.optional && !chosen[c.name]);

  useEffect(() => {
    if (missing) return;
    let current = true;
    setEffect(null);
    setProblem(null);
    key.current = randomKey(); // another choice is another command
    action.preview({ reason: "", chosen }).then(
      (e) => current && setEffect(e),
      (error: unknown) => current && setProblem(problemOf(error)),
    );
    return () => {
      current = false;
    };
  }, [JSON.stringify(chosen), missing]);

  const run = async () => {
    setState("running");
    setProblem(null);
    try {
      setOutcome(await action.run({ reason, chosen }, key.current));
      setState("done");
    } catch (error) {
      const p = problemOf(error);
      if (p.status === 409) key.current = randomKey(); // it was refused, so a further try is another command
      setProblem(p);
      setState("asking");
    }
    pulse.set(pulse.get() + 1);
  };
  const ready = effect && !effect.none && !missing && state === "asking" && (!action.confirm || typed === action.confirm);

  return (
    <Dialog title={action.title} onClose={onClose}>
      <p>{action.about}</p>
      {(action.choices ?? []).map((c) => (
        <label key={c.name} class="field">
          {c.label}
          {c.options ? <select value={chosen[c.name] ?? ""} disabled={state !== "asking"} onChange={(e) => setChosen({ ...chosen, [c.name]: e.currentTarget.value })}>
            <option value="">{c.optional ?? "choose …"}</option>
            {c.options.map((o) => <option key={o}>{o}</option>)}
          </select> : <input value={chosen[c.name] ?? ""} placeholder={c.optional} disabled={state !== "asking"} spellcheck={false} onChange={(e) => setChosen({ ...chosen, [c.name]: e.currentTarget.value.trim() })} />}
        </label>
      ))}
      {!missing && <ShowEffect effect={effect} waiting={!problem} />}
      {action.reason && (
        <label class="field">
          Reason, for the history
          <input value={reason} disabled={state !== "asking"} onInput={(e) => setReason(e.currentTarget.value)} maxLength={200} placeholder="kernel patch" />
        </label>
      )}
      {action.confirm && (
        <label class="field">
          <span>Type <strong>{action.confirm}</strong> to confirm</span>
          <input value={typed} disabled={state !== "asking"} onInput={(e) => setTyped(e.currentTarget.value)} autocomplete="off" spellcheck={false} />
        </label>
      )}
      {problem && <Refused problem={problem} what={problem.status === 409 ? "changed while you looked" : undefined} />}
      {state === "done" && <p class="outcome" role="status">{outcome}</p>}
      <div class="buttons">
        {state !== "done" && (
          <button type="button" class={danger ? "danger primary" : "primary"} disabled={!ready} onClick={() => void run()}>
            {state === "running" ? "Working …" : action.title}
          </button>
        )}
        <button type="button" onClick={onClose}>{state === "done" ? "Close" : "Cancel"}</button>
      </div>
    </Dialog>
  );
}

const mostMoves = 12;

function ShowEffect({ effect, waiting }: { effect: Effect | null; waiting: boolean }) {
  if (!effect) return waiting ? <p class="quiet" role="status">Asking what this would do …</p> : null;
  const moves = effect.moves ?? [];
  return (
    <div class="effect" role="status">
      <p><strong>{effect.text}</strong></p>
      {moves.length > 0 && (
        <ul>
          {moves.slice(0, mostMoves).map((m) => (
            <li key={m.unit}>
              <Subject of={m.unit} />: {m.from || "no node"} → {m.to || "no node"}
            </li>
          ))}
          {moves.length > mostMoves && <li class="quiet">and {moves.length - mostMoves} more</li>}
        </ul>
      )}
    </div>
  );
}

export function problemOf(error: unknown): Problem {
  return error instanceof Refusal ? error.problem : { type: "", code: "", title: "", status: 0, detail: String(error) };
}

/** A key by which the store makes a command happen once. crypto.randomUUID is missing on a page without TLS. */
function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return "console-" + [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

interface CommandAction extends Omit<Action, "preview" | "run"> {
  command: (o: Options) => Command;
  /** Said of the effect if no unit moves. */
  still: string;
}

/** An action that is an operator's command. */
export function commandAction(c: CommandAction): Action {
  return {
    ...c,
    reason: true,
    async preview(o) {
      const { moves } = await post<CommandAnswer>("/commands", {}, { ...c.command(o), dry_run: true });
      return { text: moves.length ? effectOf(moves) : c.still, moves };
    },
    async run(o, key) {
      const body = { ...c.command(o), actor: "console", ...(o.reason ? { reason: o.reason } : {}) };
      const answer = await post<CommandAnswer>("/commands", {}, body, key);
      if (!answer.done) return "The command is stored, and the leader carries it out. Follow it among the events.";
      return answer.command?.result ? `Done: ${answer.command.result}.` : "Done.";
    },
  };
}

/** "3 units move: 2 to emitd-1, 1 to emitd-2." */
export function effectOf(moves: Move[]): string {
  const targets = new Map<string, number>();
  for (const m of moves) targets.set(m.to || "", (targets.get(m.to || "") ?? 0) + 1);
  const parts = [...targets].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([to, n]) => (to ? `${n} to ${to}` : `${n} would run nowhere`));
  if (targets.size > 4) parts.push(`the others to ${targets.size - 4} more nodes`);
  return `${several(moves.length, "unit")} ${moves.length === 1 ? "moves" : "move"}: ${parts.join(", ")}.`;
}
