import assert from "node:assert/strict";
import { test } from "node:test";
import { clockRange, doneText, left_s, sentence } from "../src/lib/eta.ts";
import { clockTime } from "../src/lib/format.ts";
import { sorted } from "../src/lib/joblist.ts";
import type { JobEta } from "../src/lib/types.ts";
import { job } from "./samples.ts";

const NOW_S = 1_800_000_000;
const UNKNOWN = { p50_s: null, p90_s: null };

function eta(start: [number, number] | null, finish: [number, number | null] | null): JobEta {
  const moment = (pair: [number, number | null] | null) => (pair ? { p50_s: NOW_S + pair[0], p90_s: pair[1] == null ? null : NOW_S + pair[1] } : UNKNOWN);
  return { id: "1", start: moment(start), finish: moment(finish), why: finish ? "" : "it never starts" };
}

test("a running job is done as likely as not by one time, and nearly surely by another", () => {
  const done = doneText(job("1"), eta([0, 0], [600, 7200]), NOW_S);
  assert.equal(done?.likely, "10 min");
  assert.equal(done?.latest, "≤ 2 h");
  assert.ok(done?.title.startsWith(`Done in 10 min (${clockTime(NOW_S + 600, false)}), nine of ten times in 2 h`));
});

test("what is nearly certain is rounded up", () => {
  const latest = (seconds: number): string | undefined => doneText(job("1"), eta([0, 0], [0, seconds]), NOW_S)?.latest;
  assert.deepEqual([30.2, 61, 5400, 16_740, 200_000].map(latest), ["≤ 31 s", "≤ 2 min", "≤ 90 min", "≤ 5 h", "≤ 3 d"]);
});

test("a job that waits is told its start too", () => {
  const done = doneText(job("1", { state: "PENDING" }), eta([60, 120], [600, 900]), NOW_S);
  assert.match(done?.title ?? "", /^Starts in 1 min .*Done in 10 min/);
});

test("what was foreseen and has passed is now", () => {
  assert.equal(left_s(job("1"), eta([0, 0], [-5, 10]), NOW_S), 0);
});

test("without a forecast its own reports count, and without these nothing is known", () => {
  assert.equal(doneText(job("1", { eta_s: 90 }), undefined, NOW_S)?.likely, "1 min 30 s");
  assert.equal(doneText(job("1", { eta_s: 90 }), eta(null, null), NOW_S)?.latest, "");
  assert.equal(doneText(job("1"), eta(null, null), NOW_S), null);
  assert.equal(doneText(job("1", { state: "SUCCEEDED", eta_s: 90 }), eta([0, 0], [1, 2]), NOW_S), null);
});

test("a time that is never nearly certain is left out", () => {
  assert.equal(doneText(job("1"), eta([0, 0], [600, null]), NOW_S)?.latest, "");
  assert.equal(sentence("Done", UNKNOWN, NOW_S), "");
});

test("another day is named", () => {
  assert.match(clockRange({ p50_s: NOW_S, p90_s: NOW_S + 90_000 }, NOW_S), /^\d\d:\d\d – \d{4}-\d\d-\d\d \d\d:\d\d$/);
  assert.equal(clockRange({ p50_s: NOW_S, p90_s: NOW_S + 1 }, NOW_S).includes("–"), false);
});

test("a table can be sorted by what was foreseen", () => {
  const left = (one: { id: string }): number | null => ({ a: 30, b: 10 })[one.id] ?? null;
  const ids = sorted([job("a", { eta_s: 1 }), job("b", { eta_s: 2 }), job("c")], { key: "eta", descending: false }, left).map((one) => one.id);
  assert.deepEqual(ids, ["b", "a", "c"]);
});
