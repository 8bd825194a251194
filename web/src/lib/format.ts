// Numbers, times and sizes as people read them. No locale of the machine: the same text everywhere.

/** 1234567 → "1,234,567" */
export function count(n: number): string {
  return Math.round(n)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** "1 GPU", "4 GPUs" */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** Three significant digits, without a tail of zeros. */
export function number(n: number | null | undefined): string {
  if (n == null || !Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size >= 1e15) return n.toExponential(2);
  if (size >= 1000) return count(n);
  if (size === 0) return "0";
  if (size < 1e-4) return n.toExponential(1);
  const text = n.toPrecision(3);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** 0.4213 → "42 %" */
export function percent(fraction: number | null | undefined): string {
  if (fraction == null || !Number.isFinite(fraction)) return "–";
  const shown = fraction * 100;
  // Nothing is done before it is done.
  return `${fraction < 1 ? Math.min(99, Math.floor(shown)) : Math.round(shown)} %`;
}

/** The two largest units: "45 s", "3 min 20 s", "2 h 5 min", "3 d 4 h" */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) return "0 s";
  if (seconds < 1) return seconds < 0.001 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${number(Math.round(seconds * 10) / 10)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  const units: [number, string][] = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const at = units.findIndex(([size]) => s >= size);
  const [size, unit] = units[at]!;
  const [nextSize, nextUnit] = units[at + 1]!;
  const rest = Math.floor((s % size) / nextSize);
  const head = `${Math.floor(s / size)} ${unit}`;
  return rest ? `${head} ${rest} ${nextUnit}` : head;
}

/** One unit only, for narrow places: "45 s", "3 min", "2 h", "3 d" */
export function shortDuration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

/** "just now", "12 s ago", "3 min ago", "in 2 h" */
export function relative(time_s: number | null | undefined, now_s: number): string {
  if (time_s == null) return "–";
  const ago = now_s - time_s;
  if (Math.abs(ago) < 3) return "just now";
  const s = Math.abs(ago);
  const text =
    s < 60
      ? `${Math.floor(s)} s`
      : s < 3600
        ? `${Math.floor(s / 60)} min`
        : s < 86400
          ? `${Math.floor(s / 3600)} h`
          : `${Math.floor(s / 86400)} d`;
  return ago > 0 ? `${text} ago` : `in ${text}`;
}

const two = (n: number): string => String(n).padStart(2, "0");

/** The same of what has happened: a server whose clock is ahead of ours says nothing of the future. */
export const since = (time_s: number, now_s: number): string => relative(Math.min(time_s, now_s), now_s);

/** "14:03:09", in the reader's time zone */
export function clockTime(time_s: number, seconds = true): string {
  const date = new Date(time_s * 1000);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return seconds ? `${text}:${two(date.getSeconds())}` : text;
}

/** "2026-11-15 14:03:09" */
export function dateTime(time_s: number | null | undefined): string {
  if (time_s == null) return "–";
  const date = new Date(time_s * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clockTime(time_s)}`;
}

/** What the scheduler says, with one GPU in the singular. */
export function sentence(text: string): string {
  return text.replace(/\b1 GPUs\b/g, "1 GPU");
}

/** "RUNNING" → "Running", "FAILED_SETUP" → "Failed setup" */
export function words(code: string): string {
  const text = code.replace(/_/g, " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A key of evidence or metrics with its unit: "gain_s" → ["gain", "s"] */
export function keyAndUnit(key: string): [string, string] {
  const match = /^(.+)_(s|ms|mib|gib|bytes)$/.exec(key);
  if (!match) return [key.replace(/_/g, " "), ""];
  const unit = { s: "s", ms: "ms", mib: "MiB", gib: "GiB", bytes: "B" }[match[2]!] ?? "";
  return [match[1]!.replace(/_/g, " "), unit];
}
