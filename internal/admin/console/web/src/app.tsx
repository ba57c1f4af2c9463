import { useEffect, useRef, useState } from "preact/hooks";
import { isLimited, login, session, signIn } from "./api";
import { isPaused, overview, setPaused, streamState, trouble } from "./live";
import { go, to, useRoute, type Route } from "./route";
import { useStore } from "./store";
import { nextTheme, theme } from "./theme";
import { Refused } from "./parts/basic";
import { Dialog } from "./parts/dialog";
import { CommandsPage } from "./pages/commands";
import { DaemonPage, DaemonsPage } from "./pages/daemons";
import { EventPage, EventsPage } from "./pages/events";
import { LeaderPage } from "./pages/leader";
import { LocksPage } from "./pages/locks";
import { NodePage, NodesPage } from "./pages/nodes";
import { MessagePage, OutboxPage, SubscriptionPage } from "./pages/outbox";
import { OverviewPage } from "./pages/overview";
import { JobPage, QueuePage, QueuesPage } from "./pages/queues";
import { SettingsPage } from "./pages/settings";
import { UnitPage } from "./pages/unit";

/** The pages of the navigation, with the key that follows g. */
const nav: [path: string, name: string, key: string][] = [
  ["", "Overview", "o"], ["nodes", "Nodes", "n"], ["daemons", "Daemons", "d"], ["leader", "Leader", "l"], ["locks", "Locks", "k"],
  ["queues", "Queues", "q"], ["outbox", "Outbox", "b"], ["events", "Events", "e"], ["settings", "Settings", "s"],
];

/** Those on which somebody with a limited role sees something. */
const limited = ["", "queues", "outbox"];

function page({ path }: Route) {
  const [first = "", second, third] = path;
  switch (first) {
    case "":
      return <OverviewPage />;
    case "nodes":
      return second ? <NodePage key={second} name={second} /> : <NodesPage />;
    case "daemons":
      return second ? <DaemonPage key={second} id={second} /> : <DaemonsPage />;
    case "units":
      return second ? <UnitPage key={second} id={second} /> : <DaemonsPage />;
    case "leader":
      return <LeaderPage />;
    case "locks":
      return <LocksPage />;
    case "events":
      return second ? <EventPage key={second} seq={Number(second)} /> : <EventsPage />;
    case "queues":
      if (second && third) return <JobPage key={path.join("/")} queue={second} id={third} />;
      return second ? <QueuePage key={second} name={second} /> : <QueuesPage />;
    case "outbox":
      if (second && third) return <MessagePage key={path.join("/")} subscription={second} seq={third} />;
      return second ? <SubscriptionPage key={second} name={second} /> : <OutboxPage />;
    case "commands":
      return <CommandsPage />;
    case "settings":
      return <SettingsPage />;
  }
  return <><h1>Not found</h1><p>The console has no page {first}. <a href={to()}>Overview</a></p></>;
}

const section = (first: string) => ({ units: "daemons", commands: "" })[first] ?? first;

export function App() {
  const route = useRoute();
  const { needed, why } = useStore(login);
  const [help, setHelp] = useState(false);
  const first = section(route.path[0] ?? "");
  const pages = isLimited(useStore(session)) ? nav.filter(([p]) => limited.includes(p)) : nav;
  const name = nav.find(([p]) => p === first)?.[1] ?? "";
  const cluster = useStore(overview)?.cluster;
  useKeys(() => setHelp(true));
  useEffect(() => {
    document.title = [route.path[1] ?? name, cluster, "emitd"].filter(Boolean).join(" · ");
  }, [route, cluster]);
  useEffect(() => {
    scrollTo(0, 0);
    const link = document.querySelector<HTMLElement>("nav [aria-current]"); // on a phone, the pages are wider than the window
    if (link) link.parentElement!.scrollLeft = link.offsetLeft - 40;
  }, [route.path.join("/")]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href={to()}>emitd{cluster && <span class="cluster">{cluster}</span>}</a>
        <nav aria-label="Pages">
          {pages.map(([path, label]) => <a key={path} href={path ? to(path) : to()} aria-current={path === first ? "page" : undefined}>{label}</a>)}
        </nav>
        <Who />
        <Stream />
        <button type="button" class="icon" onClick={nextTheme} aria-label={`Theme: ${useStore(theme)}`} title="theme (t)">{({ system: "◐", light: "☀", dark: "☾" } as Record<string, string>)[useStore(theme)]}</button>
        <button type="button" class="icon" onClick={() => setHelp(true)} aria-label="Keys" title="keys (?)">?</button>
      </header>
      <main id="main" tabIndex={-1}>{needed ? <Login why={why} /> : <><Trouble />{page(route)}</>}</main>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

/** Who looks, and that nothing can be changed. */
function Who() {
  const who = useStore(session);
  if (!who) return null;
  return <>{who.actor && <span class="quiet who" title="who you are">{who.actor}</span>}{!who.roles.includes("operate") && who.roles.length > 0 && <span class="badge">read only</span>}</>;
}

function Stream() {
  const state = useStore(streamState);
  const paused = isPaused();
  const words = { live: "● live", connecting: "◔ connecting", held: "◔ every 5 s", lost: "✕ lost, again soon", paused: "‖ paused" };
  return (
    <span class="stream">
      <span class={`stream-state ${state}`} role="status">{words[state]}</span>
      <button type="button" class="small" onClick={() => setPaused(!paused)} title={`${paused ? "go on" : "pause"} (p)`}>{paused ? "go on" : "pause"}</button>
    </span>
  );
}

/** Why what is shown may be old. */
function Trouble() {
  const problem = useStore(trouble);
  const state = useStore(streamState);
  if (problem) return <Refused problem={problem} what="what is shown may be old" />;
  return state === "paused" && isPaused() ? <p class="banner">Paused: nothing on this page changes until you go on (p).</p> : null;
}

function Login({ why }: { why: string }) {
  const [token, setToken] = useState("");
  return (
    <form class="login panel" onSubmit={(e) => { e.preventDefault(); if (token.trim()) void signIn(token.trim()); }}>
      <h1>Sign in</h1>
      <p>This server wants a token: one of those in its file <code>api.tokens_file</code>. <code>emitd dev</code> has written one to <code>.emitd/token</code>.</p>
      {why && <p class="error" role="alert">{why}</p>}
      <label class="field">Token<input type="password" value={token} onInput={(e) => setToken(e.currentTarget.value)} autocomplete="off" autofocus /></label>
      <div class="buttons"><button type="submit" class="primary" disabled={!token.trim()}>Sign in</button></div>
    </form>
  );
}

const keys: [string, string][] = [
  ["/", "filter"], ["p", "pause, go on"], ["t", "theme: system, light, dark"], ["?", "these keys"], ["Esc", "close"],
];

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {nav.map(([, label, key]) => <div key={key}><dt><kbd>g</kbd> <kbd>{key}</kbd></dt><dd>{label}</dd></div>)}
        {keys.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}
      </dl>
      <div class="buttons"><button type="button" onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

function useKeys(help: () => void) {
  const before = useRef("");
  useEffect(() => {
    const press = (e: KeyboardEvent) => {
      const at = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) || document.querySelector("dialog[open]")) return;
      const last = before.current;
      before.current = "";
      if (last === "g") {
        const page = nav.find(([, , key]) => key === e.key);
        if (page) go(page[0] ? to(page[0]) : to());
        return;
      }
      switch (e.key) {
        case "g":
          before.current = "g";
          break;
        case "/":
          document.querySelector<HTMLInputElement>("main input[type=search], main input")?.focus();
          e.preventDefault();
          break;
        case "p":
          setPaused(!isPaused());
          break;
        case "t":
          nextTheme();
          break;
        case "?":
          help();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
