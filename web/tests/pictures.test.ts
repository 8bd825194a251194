import assert from "node:assert/strict";
import { test } from "node:test";
import { curve, measures, meanUse, sizeCurve, useCurve } from "../src/lib/curve.ts";
import { byRack, countKinds, meanUtilisation, tileKind } from "../src/lib/gpumap.ts";
import { bars, fitted, rows, stacked, ticks } from "../src/lib/timeline.ts";
import type { ProgressPoint, Timeline } from "../src/lib/types.ts";
import { gpu, node } from "./samples.ts";

test("free GPUs beside busy ones are fragments", () => {
  const mixed = node("a", [gpu(0, "1"), gpu(1)]);
  const empty = node("b", [gpu(0), { ...gpu(1), healthy: false }]);
  const closed = node("c", [gpu(0), gpu(1, "1", "2")], "cordoned");
  assert.deepEqual(countKinds([mixed, empty, closed]), { busy: 1, shared: 1, free: 1, fragmented: 1, ill: 1, closed: 1 });
  assert.equal(tileKind(gpu(0, "1"), node("d", [gpu(0, "1")], "lost")), "ill");
  assert.equal(meanUtilisation([mixed]), null);
  assert.equal(byRack([mixed, empty]).length, 1);
});

test("bars are cut to the span, and equal neighbours are one", () => {
  const span = { from_s: 100, to_s: 200 };
  const found = bars(
    [
      { from_s: 50, to_s: 120, gpus: 2 },
      { from_s: 120, to_s: 150, gpus: 2 },
      { from_s: 150, to_s: 160, gpus: 0 },
      { from_s: 160, to_s: null, gpus: 4 },
      { from_s: 300, to_s: 400, gpus: 1 },
    ],
    span,
  );
  assert.deepEqual(
    found.map((bar) => [bar.x, bar.width, bar.gpus]),
    [
      [0, 0.5, 2],
      [0.6, 0.4, 4],
    ],
  );
});

const TIMELINE: Timeline = {
  from_s: 0,
  to_s: 100,
  gpus: 8,
  jobs: [
    { id: "1", name: "old", segments: [{ from_s: 0, to_s: 50, gpus: 4 }] },
    { id: "2", name: "new", segments: [{ from_s: 25, to_s: 50, gpus: 2 }, { from_s: 50, to_s: 100, gpus: 8 }] },
  ],
};

test("what runs comes first and is drawn up to now", () => {
  const found = rows(TIMELINE, { from_s: 0, to_s: 110 });
  assert.deepEqual(
    found.map((row) => [row.id, row.now, row.peak]),
    [
      ["2", 8, 8],
      ["1", 0, 4],
    ],
  );
  assert.equal(found[0]!.bars.at(-1)!.to_s, 110);
});

test("a pile never overlaps and adds up", () => {
  const layers = stacked(rows(TIMELINE, { from_s: 0, to_s: 100 }));
  const at = (time: number): [number, number][] =>
    layers.flatMap((layer) => layer.bars.filter((bar) => bar.from_s <= time && time < bar.to_s).map((bar): [number, number] => [bar.base, bar.gpus]));
  assert.deepEqual(at(10), [[0, 4]]);
  assert.deepEqual(at(30), [[0, 4], [4, 2]]);
  assert.deepEqual(at(70), [[0, 8]]);
});

test("the span is no longer than what there is to see", () => {
  assert.equal(fitted(TIMELINE, 100, 3600).from_s, -4);
  assert.equal(fitted(TIMELINE, 100, 50).from_s, 50);
  assert.equal(fitted({ ...TIMELINE, jobs: [] }, 100, 3600).from_s, 40);
});

test("ticks are round and few", () => {
  const found = ticks({ from_s: 1000, to_s: 1300 }, 6);
  assert.ok(found.length >= 3 && found.length <= 6);
  assert.ok(found.every((tick) => tick % 60 === 0));
});

const point = (step: number, time_s: number, loss: number | null): ProgressPoint => ({ step, time_s, epoch: null, loss, samples_per_s: null, metrics: { lr: 0.1 } });

test("after a restart the newer report of a step counts", () => {
  const points = [point(1, 10, 3), point(2, 11, 2), point(1, 20, 2.5), point(2, 21, null)];
  assert.deepEqual(curve(points, "step", "loss"), [[1, 2], [2.5, 2]]);
  assert.deepEqual(curve([point(1, 10, 0), point(2, 11, 2)], "step", "loss", true), [[2], [2]]);
  assert.deepEqual(curve(points, "time", "lr")[0], [10, 11, 20, 21]);
  assert.deepEqual(measures(points), ["loss", "lr"]);
});

test("size over time begins and waits at zero", () => {
  const found = sizeCurve([{ from_s: 10, to_s: 20, gpus: 2 }, { from_s: 20, to_s: 30, gpus: 4 }, { from_s: 40, to_s: 50, gpus: 1 }], 0, 50);
  assert.deepEqual(found, [[0, 10, 20, 30, 40, 50], [0, 2, 4, 0, 1, 1]]);
});

test("use holds until it is measured again, ends with the job, and is not drawn where there were no GPUs", () => {
  const points = [
    { time_s: 10, busy: 0.5, gpus: 2 },
    { time_s: 40, busy: 1, gpus: 2 },
  ];
  const segments = [
    { from_s: 5, to_s: 20, gpus: 2 },
    { from_s: 30, to_s: 50, gpus: 2 },
  ];
  assert.deepEqual(useCurve(points, segments, 50), [
    [10, 20, 40, 50],
    [50, null, 100, 100],
  ]);
  assert.equal(meanUse(points, 50), 0.625);
  assert.equal(meanUse([], 50), null);
});
