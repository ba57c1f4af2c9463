// The operators' commands that the pages offer.
import type { Leader, Node, Unit } from "./api";
import { commandAction, type Action, type Offer } from "./parts/action";

const cordoned = (n: Node) => (n.orders ?? []).some((o) => o.kind === "node.cordon" || o.kind === "node.drain");

export function nodeActions(n: Node, leader: Leader | null | undefined): Offer[] {
  const out: Offer[] = [];
  if (n.state === "removed") {
    if (n.orders?.length) out.push({ label: "Forget …", danger: true, action: forget(n) });
    return out;
  }
  if (cordoned(n)) {
    out.push({
      label: "Uncordon …",
      action: commandAction({
        title: `Uncordon ${n.name}`, about: "The node may get units again, and may lead.", still: "No unit moves at once; further units may be placed here.",
        command: () => ({ kind: "node.uncordon", node: n.name }),
      }),
    });
  } else {
    out.push({
      label: "Cordon …",
      action: commandAction({
        title: `Cordon ${n.name}`, about: "The node keeps what it has and gets no further units, until it is uncordoned.", still: `No unit moves: ${n.name} keeps what it has.`,
        command: () => ({ kind: "node.cordon", node: n.name }),
      }),
    });
    out.push({
      label: "Drain …", danger: true,
      action: commandAction({
        title: `Drain ${n.name}`, about: `The node hands its units over, gets no further ones${n.leader ? ", and lets another node lead" : ""}, until it is uncordoned.`,
        still: "No unit moves: the node holds none.", command: () => ({ kind: "node.drain", node: n.name }),
      }),
    });
  }
  if (n.leader && leader) out.push({ label: "Resign …", action: resign(leader) });
  return out;
}

function forget(n: Node): Action {
  return commandAction({
    title: `Forget ${n.name}`, confirm: n.name, about: "Ends every standing command about a node that is gone. It does nothing to a process.",
    still: `${n.orders?.length ?? 0} standing commands end.`, command: () => ({ kind: "node.forget", node: n.name }),
  });
}

export function resign(leader: Leader, candidates: string[] = []): Action {
  return commandAction({
    title: `Let ${leader.node} resign`, about: `${leader.node} gives up term ${leader.term_ordinal}, and another node is elected. Units go on running.`,
    still: "No unit moves; for a moment there is no leader.",
    choices: candidates.length ? [{ name: "to", label: "Next leader", options: candidates, optional: "whoever is first" }] : undefined,
    command: (o) => ({ kind: "leader.resign", term: leader.term, cooldown_ms: 120_000, ...(o.chosen.to ? { to: o.chosen.to } : {}) }),
  });
}

export function daemonActions(daemon: string, paused: boolean): Offer[] {
  return paused
    ? [{
        label: "Resume …",
        action: commandAction({ title: `Resume ${daemon}`, about: "Its units run again.", still: "Its units are placed again.", command: () => ({ kind: "daemon.resume", daemon }) }),
      }]
    : [{
        label: "Pause …", danger: true,
        action: commandAction({ title: `Pause ${daemon}`, about: "Its units drain and run nowhere, until it is resumed.", still: "No unit runs.", command: () => ({ kind: "daemon.pause", daemon }) }),
      }];
}

export const rebalance = commandAction({
  title: "Rebalance", about: "Moves running units by hand-overs so that the nodes' loads become even.", still: "No unit moves: the loads are even.", command: () => ({ kind: "daemon.rebalance" }),
});

export function unitActions(u: Unit, nodes: string[]): Offer[] {
  const is = (kind: string) => (u.orders ?? []).some((o) => o.kind === kind && o.subject === u.unit);
  const others = nodes.filter((n) => n !== u.node);
  const out: Offer[] = [];
  if (u.node) {
    out.push({
      label: "Restart …",
      action: commandAction({
        title: `Restart ${u.unit}`, about: "The run drains and begins anew, with a new generation.", still: `It starts again; at present it runs on ${u.node}.`,
        command: () => ({ kind: "daemon.restart", unit: u.unit, generation: u.generation }),
      }),
    });
    out.push({
      label: "Move …",
      action: commandAction({
        title: `Move ${u.unit}`, about: `Hands the unit over from ${u.node}, once.`, still: "It does not move.",
        choices: [{ name: "to", label: "To", options: others }], command: (o) => ({ kind: "daemon.move", unit: u.unit, to: o.chosen.to, generation: u.generation }),
      }),
    });
  }
  out.push(
    is("daemon.pin")
      ? { label: "Unpin …", action: commandAction({ title: `Unpin ${u.unit}`, about: "It may run on any node again.", still: "It does not move at once.", command: () => ({ kind: "daemon.unpin", unit: u.unit }) }) }
      : {
          label: "Pin …",
          action: commandAction({
            title: `Pin ${u.unit}`, about: "Prefers a node for the unit for as long as that node can take it.", still: "It does not move.",
            choices: [{ name: "to", label: "Node", options: nodes }], command: (o) => ({ kind: "daemon.pin", unit: u.unit, to: o.chosen.to }),
          }),
        },
  );
  out.push(
    is("daemon.pause")
      ? { label: "Resume …", action: commandAction({ title: `Resume ${u.unit}`, about: "It runs again.", still: "It is placed again.", command: () => ({ kind: "daemon.resume", unit: u.unit }) }) }
      : { label: "Pause …", danger: true, action: commandAction({ title: `Pause ${u.unit}`, about: "It drains and runs nowhere, until it is resumed.", still: "It does not run.", command: () => ({ kind: "daemon.pause", unit: u.unit }) }) },
  );
  return out;
}
