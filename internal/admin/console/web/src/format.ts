export const count = (n: number) => n.toLocaleString("en-US");

/** A load or a weight: at most two decimals. */
export const decimal = (n: number) => n.toLocaleString("en-US", { maximumFractionDigits: 2 });

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

/** A version: of one that Go derives from a commit (v0.0.0-time-commit), the commit. */
export const version = (v: string) => /^v\d[^-]*-(?:.*\.)?\d{14}-([0-9a-f]{12})$/.exec(v)?.[1] ?? v;

/** 1 node, 3 nodes. */
export const several = (n: number, one: string, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
