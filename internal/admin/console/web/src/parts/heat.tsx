// Units by node, as a map in which the busiest nodes stand out.
import { memo } from "preact/compat";
import type { Node } from "../api";
import { decimal, several } from "../format";
import { to } from "../route";
import { State } from "./basic";

const named = 60; // nodes; more have cells without names

export function HeatMap({ nodes }: { nodes: Node[] }) {
  const most = Math.max(1, ...nodes.map((n) => n.units));
  const small = nodes.length > named;
  return (
    <div>
      <ul class={small ? "heat small" : "heat"} aria-label="Units by node">
        {nodes.map((n) => <Cell key={n.incarnation} node={n} step={n.units === 0 ? 0 : Math.ceil((n.units / most) * 5)} small={small} />)}
      </ul>
      <p class="legend-line quiet">
        none <span class="heat-step s0" /><span class="heat-step s1" /><span class="heat-step s2" /><span class="heat-step s3" /><span class="heat-step s4" /><span class="heat-step s5" /> {several(most, "unit")}
      </p>
    </div>
  );
}

const Cell = memo(
  function Cell({ node: n, step, small }: { node: Node; step: number; small: boolean }) {
    const text = `${n.name}: ${several(n.units, "unit")}, load ${decimal(n.load)}, ${n.state}${n.leader ? ", leader" : ""}`;
    return (
      <li>
        <a class={`cell s${step} ${n.state}`} href={to("nodes", n.name)} title={text} aria-label={small ? text : undefined} tabIndex={small ? -1 : 0}>
          {!small && (
            <>
              <span class="name">{n.leader ? "★ " : ""}{n.name}</span>
              <span class="units">{several(n.units, "unit")}</span>
              {n.state !== "live" && <State of={n.state} />}
            </>
          )}
        </a>
      </li>
    );
  },
  (a, b) => a.step === b.step && a.small === b.small && a.node.units === b.node.units && a.node.load === b.node.load && a.node.state === b.node.state && a.node.leader === b.node.leader && a.node.name === b.node.name,
);
