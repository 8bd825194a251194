import assert from "node:assert/strict";
import { test } from "node:test";
import { feedLines } from "../src/lib/feed.ts";
import { healthRows, isHuman, isMendable, summary, targetName } from "../src/lib/health.ts";
import type { ClusterNode, HealthShown } from "../src/lib/types.ts";
import { gpu, node } from "./samples.ts";

function health(change: Partial<HealthShown> = {}): HealthShown {
  return { state: "ill", reason: "Xid 79", since_s: 100, who: "health", remedy: "reboot", held: false, until_s: null, flaps: 0, incidents: 1, ...change };
}

const well = (name: string): ClusterNode => node(name, [gpu(0), gpu(1)]);

test("nothing is said of what is well", () => {
  assert.deepEqual(healthRows([well("a"), well("b")]), []);
});

test("the worst comes first, and of those the newest", () => {
  const a: ClusterNode = { ...well("a"), state: "cordoned", cordoned_by: "ana" };
  const b: ClusterNode = { ...well("b"), gpus: [{ ...gpu(0), health: health({ since_s: 5 }) }, { ...gpu(1), health: health({ state: "suspect" }) }] };
  const c: ClusterNode = { ...well("c"), state: "unhealthy", health: health({ since_s: 50 }) };
  const d: ClusterNode = { ...well("d"), state: "lost" };
  assert.deepEqual(
    healthRows([a, b, c, d]).map((row) => `${targetName(row)} ${row.state}`),
    ["d lost", "c ill", "b, GPU 0 ill", "b, GPU 1 suspect", "a cordoned"],
  );
  assert.equal(summary(healthRows([a, b, c, d])), "3 out of service, 1 suspect, 1 cordoned");
});

test("a cordon is a human's, and may stand beside an illness", () => {
  const both: ClusterNode = { ...well("a"), state: "cordoned", cordoned_by: "ana", health: health() };
  const rows = healthRows([both]);
  assert.deepEqual(
    rows.map((row) => [row.state, isHuman(row), isMendable(row)]),
    [
      ["ill", false, true],
      ["cordoned", true, false],
    ],
  );
  assert.equal(new Set(rows.map((row) => row.key)).size, 2);
});

test("what the guard rail keeps in service is counted apart", () => {
  const held: ClusterNode = { ...well("a"), gpus: [{ ...gpu(0), health: health({ held: true }) }] };
  assert.equal(summary(healthRows([held])), "1 ill and in service");
});

test("a GPU of which only the backend knows that it is ill is there too", () => {
  const rows = healthRows([{ ...well("a"), gpus: [{ ...gpu(0), healthy: false }] }]);
  assert.deepEqual([rows.length, rows[0]!.state, isMendable(rows[0]!)], [1, "ill", false]);
});

test("a node that is out speaks for its GPUs, of which nothing else is known", () => {
  const gpus = [{ ...gpu(0), healthy: false }, { ...gpu(1), healthy: false, health: health({ reason: "Xid 48" }) }];
  const out: ClusterNode = { ...well("a"), gpus, state: "unhealthy", health: health() };
  assert.deepEqual(
    healthRows([out]).map((row) => [targetName(row), row.reason]),
    [
      ["a", "Xid 79"],
      ["a, GPU 1", "Xid 48"],
    ],
  );
  const held: ClusterNode = { ...out, gpus: gpus.slice(0, 1), health: health({ held: true }) };
  assert.equal(healthRows([held]).length, 2);
});

test("changes of health are news", () => {
  const told = (data: Record<string, unknown>) => feedLines({ seq: 1, type: "HealthChanged", time_s: 1, data })[0]!.text;
  assert.equal(told({ node: "a", gpu: 3, state: "ill", reason: "Xid 79" }), "GPU 3 of a is ill: Xid 79");
  assert.equal(told({ node: "a", gpu: null, state: "healthy", reason: "" }), "Node a is well again");
  assert.match(told({ node: "a", gpu: null, state: "alert", reason: "x" }), /stays in service/);
});
