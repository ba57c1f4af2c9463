// The place in the console is the part of the URL after #: a path and parameters. So links work below any prefix.
import { store, useStore } from "./store";

export interface Route {
  path: string[];
  params: URLSearchParams;
}

function parse(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { path: path.split("/").filter(Boolean).map(decoded), params: new URLSearchParams(query) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const route = store(parse());
addEventListener("hashchange", () => route.set(parse()));

export const useRoute = () => useStore(route);

/** The address of a page: to("nodes", "emitd-1"). */
export function to(...path: string[]): string {
  return "#/" + path.map(encodeURIComponent).join("/");
}

export function go(address: string) {
  location.hash = address;
}

/** Changes parameters of the present page. Empty ones are removed. It makes no entry in the history of the browser. */
export function setParams(changes: Record<string, string>) {
  const { path, params } = parse();
  for (const [name, value] of Object.entries(changes)) {
    if (value) params.set(name, value);
    else params.delete(name);
  }
  const query = params.toString();
  history.replaceState(null, "", to(...path) + (query ? "?" + query : ""));
  route.set(parse());
}

/** A parameter of the present page, and how to change it. */
export function useParam(name: string, initial = ""): [string, (value: string) => void] {
  const value = useRoute().params.get(name) ?? initial;
  return [value, (next) => setParams({ [name]: next === initial ? "" : next })];
}

/** Where a person finds what a notice or an event is about. */
export function subjectLink(subject: string): string | null {
  const [word, rest] = subject.split(/ (.*)/s);
  if (word === "queue" && rest) return to("queues", rest);
  if (word === "outbox") return rest ? to("outbox", rest) : to("outbox");
  switch (subject) {
    case "leader":
      return to("leader");
    case "queues":
    case "nodes":
    case "daemons":
      return to(subject);
    case "cluster":
    case "store":
    case "timings":
      return null;
  }
  if (!subject.includes(":")) return to("nodes", subject);
  return /~|\/\d+$/.test(subject) ? to("units", subject) : to("daemons", subject);
}
