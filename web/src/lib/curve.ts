// From points and segments to the columns that a chart wants.

import type { ProgressPoint, Segment, UsePoint } from "./types.ts";

export type Columns = [x: number[], y: (number | null)[]];
export type Axis = "step" | "time";
export type Measure = "loss" | "samples_per_s" | string;

const read = (point: ProgressPoint, measure: Measure): number | null => {
  const value = measure === "loss" ? point.loss : measure === "samples_per_s" ? point.samples_per_s : point.metrics?.[measure];
  return value ?? null;
};

/** In order of x, for a logarithmic axis only what is positive; after a restart steps come again, and the newer report counts. */
export function curve(points: readonly ProgressPoint[], axis: Axis, measure: Measure, positive = false): Columns {
  const byX = new Map<number, number>();
  for (const point of points) {
    const x = axis === "step" ? point.step : point.time_s;
    const y = read(point, measure);
    if (x != null && y != null && (y > 0 || !positive)) byX.set(x, y);
  }
  const xs = [...byX.keys()].sort((a, b) => a - b);
  return [xs, xs.map((x) => byX.get(x)!)];
}

/** What there is to choose from. */
export function measures(points: readonly ProgressPoint[]): Measure[] {
  const found = new Set<Measure>();
  for (const point of points) {
    if (point.loss != null) found.add("loss");
    if (point.samples_per_s != null) found.add("samples_per_s");
    for (const name of Object.keys(point.metrics ?? {})) found.add(name);
  }
  return [...found].sort((a, b) => Number(b === "loss") - Number(a === "loss") || a.localeCompare(b));
}

/** Size over time as steps, with zero where the job had no GPUs. */
export function sizeCurve(segments: readonly Segment[], from_s: number, to_s: number): Columns {
  const xs: number[] = [];
  const ys: number[] = [];
  const put = (x: number, y: number): void => {
    if (xs.length && xs.at(-1)! >= x) {
      ys[ys.length - 1] = y;
      return;
    }
    xs.push(x);
    ys.push(y);
  };
  put(from_s, 0);
  for (const segment of segments) {
    const end = Math.min(to_s, segment.to_s ?? to_s);
    if (end <= from_s) continue;
    put(Math.max(from_s, segment.from_s), segment.gpus);
    put(end, 0);
  }
  const last = segments.at(-1);
  put(to_s, last && (last.to_s == null || last.to_s >= to_s - 1) ? last.gpus : 0);
  return [xs, ys];
}

/** How busy its GPUs were, in percent, as steps: what was measured last holds until the next time, at most until the end. */
export function useCurve(points: readonly UsePoint[], segments: readonly Segment[], end_s: number): Columns {
  const xs = points.map((point) => point.time_s);
  const ys: (number | null)[] = points.map((point) => Math.round(point.busy * 1000) / 10);
  // Where it had no GPUs there is nothing to draw.
  for (const gap of gaps(segments, end_s)) {
    const at = xs.findIndex((x) => x >= gap);
    const place = at < 0 ? xs.length : at;
    if (place === 0 || xs[place] === gap) continue;
    xs.splice(place, 0, gap);
    ys.splice(place, 0, null);
  }
  const last = ys.at(-1);
  if (last != null && end_s > xs.at(-1)!) {
    xs.push(end_s);
    ys.push(last);
  }
  return [xs, ys];
}

/** When a job lost all its GPUs. */
function gaps(segments: readonly Segment[], end_s: number): number[] {
  return segments.filter((one, at) => one.to_s != null && one.to_s < end_s - 1 && (segments[at + 1]?.from_s ?? Infinity) > one.to_s + 1e-6).map((one) => one.to_s!);
}

/** The mean over the time that was measured, 0…1; null where nothing was. */
export function meanUse(points: readonly UsePoint[], end_s: number): number | null {
  let [sum, time] = [0, 0];
  points.forEach((point, at) => {
    const span = Math.max(1, (points[at + 1]?.time_s ?? end_s) - point.time_s);
    sum += span * point.busy;
    time += span;
  });
  return time ? sum / time : null;
}
