// A store is a value that components follow.
import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  get(): T;
  set(next: T): void;
  follow(f: () => void): () => void;
}

export function store<T>(value: T): Store<T> {
  const followers = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const f of [...followers]) f();
    },
    follow(f) {
      followers.add(f);
      return () => followers.delete(f);
    },
  };
}

/** Renders the component again whenever the store's value changes. */
export function useStore<T>(s: Store<T>): T {
  const [value, setValue] = useState(s.get());
  useEffect(() => {
    setValue(() => s.get());
    return s.follow(() => setValue(() => s.get()));
  }, [s]);
  return value;
}
