// What a page shows, read again whenever something may have changed.
import { useEffect, useRef, useState } from "preact/hooks";
import { login, Refusal, type Problem } from "./api";
import { isPaused, pulse } from "./live";
import { setStoreTime } from "./time";

export interface Result<T> {
  data: T | undefined;
  problem: Problem | null;
  reload: () => void;
}

/**
 * Reads by a function. It reads again when the key changes and, at most every so many milliseconds, when there may be
 * something new, unless the page is paused. Data stays while a later read fails.
 */
export function useQuery<T>(key: string, read: (signal: AbortSignal) => Promise<T>, every = 1500): Result<T> {
  const [state, setState] = useState<{ key: string; data?: T; problem: Problem | null }>({ key, problem: null });
  const [turn, setTurn] = useState(0);
  const reader = useRef(read);
  reader.current = read;
  useEffect(() => {
    const control = new AbortController();
    let last = 0;
    let busy = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      if (busy) return;
      busy = true;
      last = Date.now();
      try {
        const data = await reader.current(control.signal);
        if (control.signal.aborted) return;
        const at = (data as { at?: string | null } | null)?.at;
        if (at) setStoreTime(at);
        setState({ key, data, problem: null });
      } catch (error) {
        if (control.signal.aborted) return;
        const problem = error instanceof Refusal ? error.problem : { type: "", code: "", title: "", status: 0, detail: String(error) };
        setState((s) => ({ key, data: s.key === key ? s.data : undefined, problem }));
      } finally {
        busy = false;
      }
    };
    const wake = () => {
      if (isPaused() || login.get().needed || document.hidden) return;
      clearTimeout(timer);
      const wait = last + every - Date.now();
      if (wait <= 0) void load();
      else timer = setTimeout(load, wait);
    };
    void load();
    const ends = [pulse.follow(wake), login.follow(wake)];
    return () => {
      control.abort();
      clearTimeout(timer);
      for (const end of ends) end();
    };
  }, [key, every, turn]);
  const mine = state.key === key;
  return { data: mine ? state.data : undefined, problem: mine ? state.problem : null, reload: () => setTurn((n) => n + 1) };
}
