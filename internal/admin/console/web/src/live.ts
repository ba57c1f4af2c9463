// The stream: one for the whole page. It tells what has happened, and the pages read what they show anew.
import { address, call, get, isLimited, login, Refusal, session, whoAmI, type Event, type Overview, type Problem } from "./api";
import { store } from "./store";
import { setStoreTime } from "./time";

export type StreamState = "connecting" | "live" | "held" | "lost" | "paused";

export const streamState = store<StreamState>("connecting");

/** Why the stream is lost, or why the store does not answer. */
export const trouble = store<Problem | null>(null);

export const overview = store<Overview | null>(null);

/** The newest events of the stream, the newest first. */
export const recent = store<Event[]>([]);

/** Grows whenever there may be something new to read. */
export const pulse = store(0);

const mostRecent = 500;
const held = 5_000; // ms until the first message: a proxy keeps the stream to itself
const quiet = 40_000; // ms without a message or a keep-alive: the connection is dead

let paused = false; // by the user
let position: string | undefined; // Last-Event-ID
let current: AbortController | null = null;
let retry: ReturnType<typeof setTimeout> | undefined;

export function isPaused() {
  return paused;
}

export function setPaused(on: boolean) {
  if (paused === on) return;
  paused = on;
  if (on) stop("paused");
  else void connect();
}

/** Follows the cluster until the page is closed. A tab that nobody sees does not. */
export function start() {
  document.addEventListener("visibilitychange", () => {
    if (paused) return;
    if (document.hidden) stop("paused");
    else void begin();
  });
  login.follow(() => {
    if (login.get().needed) stop("lost");
    else if (!paused && !document.hidden) void connect();
  });
  void begin();
}

/** Finds out who this is, and connects. */
async function begin() {
  await whoAmI().catch(() => {}); // without an answer, the stream says why
  if (!login.get().needed && !paused && !document.hidden) void connect();
}

function stop(state: StreamState) {
  clearTimeout(retry);
  current?.abort();
  current = null;
  streamState.set(state);
}

/** Reads the overview again and again, for those whose role is too limited for the stream. */
async function look(control: AbortController) {
  while (current === control) {
    message("overview", JSON.stringify(await get("/overview", {}, control.signal)));
    streamState.set("live");
    trouble.set(null);
    await new Promise((done) => setTimeout(done, 2000));
  }
}

async function connect() {
  stop("connecting");
  const control = (current = new AbortController());
  let timer: ReturnType<typeof setTimeout> | undefined;
  let polls: ReturnType<typeof setInterval> | undefined;
  const alive = () => {
    clearInterval(polls);
    if (current === control && streamState.get() === "held") streamState.set("live");
    clearTimeout(timer);
    timer = setTimeout(() => control.abort(), quiet);
  };
  try {
    if (isLimited(session.get())) return await look(control);
    alive();
    const answer = await call(address("/stream", { topics: "events,overview" }), {
      signal: control.signal,
      headers: position === undefined ? {} : { "Last-Event-ID": position },
    });
    streamState.set("live");
    trouble.set(null);
    if (!session.get()) void whoAmI().catch(() => {}); // the node did not answer before
    pulse.set(pulse.get() + 1);
    polls = setInterval(() => {
      if (current !== control) return;
      streamState.set("held");
      pulse.set(pulse.get() + 1);
    }, held);
    await messages(answer.body!, alive);
    if (current === control) lost(null);
  } catch (error) {
    if (current === control) lost(error);
  } finally {
    clearTimeout(timer);
    clearInterval(polls);
  }
}

/** Connects again after a second, or after 30 if this needs a login: that of the program, or a token, for which the page asks. */
function lost(error: unknown) {
  current = null;
  streamState.set("lost");
  if (error instanceof Refusal) trouble.set(error.problem);
  clearTimeout(retry);
  if (error instanceof Refusal && error.problem.status === 401) retry = setTimeout(() => void begin(), 30_000);
  else retry = setTimeout(() => void connect(), 1000);
}

/** Reads server-sent events. */
async function messages(body: ReadableStream<Uint8Array>, alive: () => void) {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) field(line);
  }
}

let kind = "";
let data = "";

function field(line: string) {
  if (line === "") {
    if (data) message(kind, data);
    kind = data = "";
    return;
  }
  const colon = line.indexOf(": ");
  const value = line.slice(colon + 2);
  switch (line.slice(0, colon)) {
    case "id":
      position = value;
      break;
    case "event":
      kind = value;
      break;
    case "data":
      data += value;
  }
}

let soon: ReturnType<typeof setTimeout> | undefined;

/** Several events that come together are one pulse. */
function stir() {
  soon ??= setTimeout(() => {
    soon = undefined;
    pulse.set(pulse.get() + 1);
  }, 200);
}

function message(kind: string, text: string) {
  const value: unknown = JSON.parse(text);
  switch (kind) {
    case "event":
      recent.set([value as Event, ...recent.get()].slice(0, mostRecent));
      stir();
      break;
    case "overview": {
      const o = value as Overview;
      if (o.at) setStoreTime(o.at);
      overview.set(o);
      stir();
      break;
    }
    case "resync":
      recent.set([]);
      stir();
      break;
    case "end": {
      const { problem } = value as { problem: Problem };
      trouble.set(problem);
      void whoAmI(problem.detail).catch(() => {});
      break;
    }
    case "store":
      trouble.set((value as { problem: Problem | null }).problem);
  }
}
