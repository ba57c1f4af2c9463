// What the overview has said since this tab was opened: enough for a line, and gone with the tab.
import type { Overview } from "./api";
import { overview } from "./live";
import { store } from "./store";

export interface Sample {
  at: number;
  overview: Overview;
}

const most = 900; // samples: half an hour

export const samples = store<Sample[]>([]);

overview.follow(() => {
  const o = overview.get();
  if (!o?.at) return;
  const last = samples.get().at(-1);
  const at = Date.parse(o.at);
  if (last && at <= last.at) return;
  samples.set([...samples.get().slice(-(most - 1)), { at, overview: o }]);
});
