// Calls of the admin API. The types come from its OpenAPI document.
import type { components, paths } from "./generated/api";
import { store } from "./store";

type Schemas = components["schemas"];
export type Overview = Schemas["Overview"];
export type Node = Schemas["Node"];
export type Unit = Schemas["Unit"];
export type Daemon = Schemas["Daemon"];
export type Event = Schemas["Event"];
export type Term = Schemas["Term"];
export type Leader = Schemas["Leader"];
export type Order = Schemas["Order"];
export type Notice = Schemas["Notice"];
export type Explanation = Schemas["Explanation"];
export type Move = Schemas["Move"];
export type Command = Schemas["CommandRequest"];
export type CommandAnswer = Schemas["CommandAnswer"];
export type Problem = Schemas["Problem"];
export type QueueStats = Schemas["QueueStats"];
export type QueueAction = Schemas["QueueAction"];
export type QueueActionAnswer = Schemas["QueueActionAnswer"];
export type Job = Schemas["Info"];
/** A job with its payload, which may be any JSON. */
export type JobDetail = Omit<Schemas["JobView"], "payload" | "result"> & { payload?: unknown; result?: unknown };
export type Subscription = Schemas["OutboxStats"];
export type Message = Schemas["OutboxMessage"];
export type MessageFilter = Schemas["MessageFilter"];
export type OutboxAction = Schemas["OutboxAction"];
export type OutboxActionAnswer = Schemas["OutboxActionAnswer"];
export type Setting = Schemas["Setting"];
export type Trend = Schemas["Trend"];
export type Trends = Schemas["TrendsAnswer"];

/** Where the API is: beside the page, so below any prefix. */
const root = new URL("api/v1/", document.baseURI.replace(/[#?].*$/, "")).href;

/** A refusal of the API, or why there is no answer. */
export class Refusal extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
}

/** Who looks at the console, and what that person may do. */
export type Session = Schemas["SessionAnswer"];

/** Null until it is known. */
export const session = store<Session | null>(null);

/** Whether this person may see some queues or subscriptions only. */
export const isLimited = (who: Session | null) => !!who?.actor && !who.roles.includes("read");

/** Whether the server asks for a token, and why it was not content with the last one. */
export const login = store<{ needed: boolean; why: string }>({ needed: false, why: "" });

/** Asks who this is. A caller with a name may be limited to some queues, and have no role in the cluster. */
export async function whoAmI(why = "") {
  const answer = await send(address("/session"));
  if (!answer.ok) return;
  const who = (await answer.json()) as Session;
  session.set(who);
  const needed = who.login && who.roles.length === 0 && !who.actor;
  if (needed !== login.get().needed || (needed && why)) login.set({ needed, why });
}

/** Signs in with a token. The server gives a cookie that no script can read. */
export async function signIn(token: string) {
  const answer = await send(address("/session"), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  if (answer.ok) await whoAmI();
  else login.set({ needed: true, why: (await problemOf(answer)).detail });
}

export async function signOut() {
  await send(address("/session"), { method: "DELETE" });
  session.set(null);
  await whoAmI();
}

const send = (url: string, init: RequestInit = {}) => fetch(url, { ...init, credentials: "same-origin", cache: "no-store" });

/** Makes a call to a path beside the page, and refuses what is no success. */
export async function call(url: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await send(url, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refusal({ type: "", code: "", title: "no answer", status: 0, detail: "The node does not answer.", hint: "Look whether it runs, or open the console of another node: each shows the same." });
  }
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (answer.status === 401) void whoAmI(problem.detail).catch(() => {});
  throw new Refusal(problem);
}

async function problemOf(answer: Response): Promise<Problem> {
  const text = await answer.text();
  try {
    const problem = JSON.parse(text) as Partial<Problem>;
    if (typeof problem.detail === "string") return { type: "", code: "", title: "", status: answer.status, ...problem } as Problem;
  } catch {
    // not the API's: a proxy's page, for example
  }
  return { type: "", code: "", title: answer.statusText, status: answer.status, detail: `The answer is ${answer.status} ${answer.statusText}: ${text.slice(0, 200)}` };
}

type Get = { [P in keyof paths]: paths[P] extends { get: { responses: { 200: { content: { "application/json": infer A } } } } } ? A : never };

export type Query = Record<string, string | number | boolean | undefined>;

/** The address of a call: {name} in its path is replaced by the parameter of that name, the others are its query. */
export function address(path: string, params: Query = {}): string {
  const rest = new URLSearchParams();
  const used = new Set<string>();
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    used.add(name);
    return encodeURIComponent(String(params[name] ?? ""));
  });
  for (const [name, value] of Object.entries(params)) {
    if (!used.has(name) && value !== undefined && value !== "" && value !== false) rest.set(name, String(value));
  }
  const query = rest.toString();
  return root + filled.slice(1) + (query ? "?" + query : "");
}

/** Reads. */
export async function get<P extends keyof Get & string>(path: P, params: Query = {}, signal?: AbortSignal): Promise<Get[P]> {
  const answer = await call(address(path, params), { signal });
  return (await answer.json()) as Get[P];
}

/** Changes something. A key makes it safe to repeat the call. */
export async function post<A>(path: string, params: Query, body: unknown, key?: string): Promise<A> {
  const answer = await call(address(path, params), {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key ? { "Idempotency-Key": key } : {}) },
    body: JSON.stringify(body),
  });
  return (await answer.json()) as A;
}

/** Follows the cursors of a list to its end, or to at most so many entries. */
export async function all<P extends keyof Get & string, K extends keyof Get[P]>(
  path: P, list: K, params: Query = {}, signal?: AbortSignal, most = 20000,
): Promise<{ rows: Extract<Get[P][K], unknown[]>; complete: boolean }> {
  const rows: unknown[] = [];
  let cursor: string | undefined;
  do {
    const page = (await get(path, { ...params, limit: 1000, cursor }, signal)) as Get[P] & { cursor: string | null };
    rows.push(...(page[list] as unknown[]));
    cursor = page.cursor ?? undefined;
  } while (cursor !== undefined && rows.length < most);
  return { rows: rows as Extract<Get[P][K], unknown[]>, complete: cursor === undefined };
}
