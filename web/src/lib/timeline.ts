// From segments (who had how many GPUs when) to rectangles. Pixels are the caller's business: x is 0…1 of the span.

import type { Segment, Timeline } from "./types.ts";

export interface Span {
  from_s: number;
  to_s: number;
}

export interface Bar {
  from_s: number;
  to_s: number;
  gpus: number;
  /** 0…1 of the span */
  x: number;
  width: number;
}

export interface Row {
  id: string;
  name: string;
  bars: Bar[];
  peak: number;
  first_s: number;
  last_s: number;
  now: number;
}

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, value));

/** Cuts segments to the span, leaves out those without GPUs, joins what touches at the same size. */
export function bars(segments: readonly Segment[], span: Span): Bar[] {
  const length = Math.max(1e-9, span.to_s - span.from_s);
  const result: Bar[] = [];
  for (const segment of segments) {
    const from_s = clamp(segment.from_s, span.from_s, span.to_s);
    const to_s = clamp(segment.to_s ?? span.to_s, span.from_s, span.to_s);
    if (to_s <= from_s || segment.gpus <= 0) continue;
    const last = result.at(-1);
    if (last && last.gpus === segment.gpus && from_s - last.to_s < 1e-3) {
      last.to_s = to_s;
      last.width = (to_s - last.from_s) / length;
      continue;
    }
    result.push({ from_s, to_s, gpus: segment.gpus, x: (from_s - span.from_s) / length, width: (to_s - from_s) / length });
  }
  return result;
}

/** One row per job that had GPUs in the span: those that run first, then by when they last ran. */
export function rows(timeline: Timeline, span: Span): Row[] {
  const open = timeline.to_s - 1;
  return timeline.jobs
    .map((job) => {
      // What ran when the answer was made still runs: it is drawn up to now, until we hear otherwise.
      const segments = job.segments.map((s) => (s.to_s == null || s.to_s >= timeline.to_s ? { ...s, to_s: span.to_s } : s));
      const own = bars(segments, span);
      const last = job.segments.at(-1);
      const running = last != null && last.gpus > 0 && (last.to_s == null || last.to_s >= open);
      return {
        id: job.id,
        name: job.name,
        bars: own,
        peak: Math.max(0, ...own.map((bar) => bar.gpus)),
        first_s: own[0]?.from_s ?? 0,
        last_s: own.at(-1)?.to_s ?? 0,
        now: running ? last.gpus : 0,
      };
    })
    .filter((row) => row.bars.length > 0)
    .sort((a, b) => Number(b.now > 0) - Number(a.now > 0) || b.last_s - a.last_s || a.first_s - b.first_s);
}

export interface Layer {
  id: string;
  name: string;
  bars: (Bar & { base: number })[];
}

/** The rows piled on each other in the order in which they first ran: how the cluster was divided at each moment. */
export function stacked(all: readonly Row[]): Layer[] {
  const order = [...all].sort((a, b) => a.first_s - b.first_s || a.id.localeCompare(b.id, "en", { numeric: true }));
  const times = [...new Set(order.flatMap((row) => row.bars.flatMap((bar) => [bar.from_s, bar.to_s])))].sort((a, b) => a - b);
  const at = new Map(times.map((time, index) => [time, index]));
  const heights = new Float64Array(Math.max(0, times.length - 1));
  return order.map((row) => {
    const pieces: (Bar & { base: number })[] = [];
    for (const bar of row.bars) {
      const length = bar.to_s - bar.from_s;
      const end = at.get(bar.to_s)!;
      for (let i = at.get(bar.from_s)!; i < end; i++) {
        const from_s = times[i]!;
        const to_s = times[i + 1]!;
        const base = heights[i]!;
        heights[i] = base + bar.gpus;
        const last = pieces.at(-1);
        if (last && last.base === base && last.gpus === bar.gpus && last.to_s === from_s) {
          last.to_s = to_s;
          last.width += (bar.width * (to_s - from_s)) / length;
        } else {
          const x = bar.x + (bar.width * (from_s - bar.from_s)) / length;
          pieces.push({ from_s, to_s, gpus: bar.gpus, base, x, width: (bar.width * (to_s - from_s)) / length });
        }
      }
    }
    return { id: row.id, name: row.name, bars: pieces };
  });
}

/** The last `length_s`, but no more than there is to see: an empty hour shows nothing. */
export function fitted(timeline: Timeline, to_s: number, length_s: number): Span {
  let first_s = to_s;
  for (const job of timeline.jobs) first_s = Math.min(first_s, job.segments[0]?.from_s ?? to_s);
  const used_s = (to_s - first_s) * 1.04;
  return { from_s: to_s - Math.min(length_s, Math.max(60, used_s)), to_s };
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Round times within the span, about as many as asked for. */
export function ticks(span: Span, about: number): number[] {
  const length = span.to_s - span.from_s;
  const step = STEPS_S.find((s) => length / s <= Math.max(1, about)) ?? STEPS_S.at(-1)!;
  // Round in the reader's time zone, so that days start at midnight.
  const shift = new Date(span.to_s * 1000).getTimezoneOffset() * 60;
  const result: number[] = [];
  for (let t = Math.ceil((span.from_s - shift) / step) * step + shift; t <= span.to_s; t += step) result.push(t);
  return result;
}
