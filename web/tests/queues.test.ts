import assert from "node:assert/strict";
import { test } from "node:test";
import { branches, cellName, needsText, quotaBars, showAmount, type Branch } from "../src/lib/queues.ts";
import type { Cohort, Queue, QuotaCell } from "../src/lib/types.ts";

const GPU = "nvidia.com/gpu";

function cell(change: Partial<QuotaCell> = {}): QuotaCell {
  return { flavor: "h100", resource: GPU, nominal: 8, borrowing_limit: null, lending_limit: null, total: 8, used: 0, reserved: 0, growth: 0, borrowed: 0, lent: 0, ...change };
}

function queue(name: string, cohort = "", change: Partial<Queue> = {}): Queue {
  return {
    name,
    cohort,
    state: "active",
    message: "",
    quota: {},
    weight: 1,
    held: false,
    used: {},
    borrowed: {},
    lent: {},
    running: 0,
    pending: 0,
    suspended: 0,
    needs: {},
    share: 0,
    strategy: "BestEffortFIFO",
    stop_policy: "None",
    cells: [],
    local_queues: [],
    ...change,
  };
}

const cohort = (name: string, parent = ""): Cohort => ({ name, parent, weight: 1, share: 0, pending: 0, running: 0, cells: [] });

function outline(all: Branch[]): string {
  return all.map((one) => (one.kind === "queue" ? one.queue.name : `${one.cohort.name}(${outline(one.inside)})`)).join(" ");
}

test("queues stand in their cohorts, and cohorts in theirs", () => {
  const tree = { queues: [queue("a", "vision"), queue("b", "lab"), queue("alone")], cohorts: [cohort("lab"), cohort("vision", "lab")], fair_sharing: false };
  assert.equal(outline(branches(tree)), "lab(vision(a) b) alone");
});

test("what names a cohort that nobody told of is still there", () => {
  assert.equal(outline(branches({ queues: [queue("a", "gone")], cohorts: [cohort("lab", "gone")], fair_sharing: false })), "lab() a");
});

test("a borrower's bar: minimums, growth and what is borrowed fill it, and a mark says where its own ends", () => {
  const [bar] = quotaBars({ cells: [cell({ used: 12, reserved: 6, growth: 6, borrowed: 4 })] });
  assert.deepEqual(
    bar!.parts.map((part) => [part.kind, part.amount]),
    [
      ["own", 6],
      ["growth", 2],
      ["borrowed", 4],
    ],
  );
  assert.equal(bar!.limit, 8 / 12);
  assert.equal(bar!.sentence, "h100 GPUs: 12 used of 8, 6 above minimums, 4 borrowed");
});

test("a lender's bar ends in what it lends, and what waits comes after it", () => {
  const [bar] = quotaBars({ cells: [cell({ used: 2, reserved: 2, lent: 3 })], needs: { [GPU]: 4 } });
  assert.deepEqual(
    bar!.parts.map((part) => [part.kind, part.amount]),
    [
      ["own", 2],
      ["idle", 3],
      ["lent", 3],
      ["pending", 4],
    ],
  );
  assert.equal(bar!.limit, 8 / 12);
  assert.equal(bar!.parts.reduce((sum, part) => sum + part.width, 0), 1);
});

test("what waits for a resource of several flavors is in no single bar, and never fills more than half", () => {
  const two = [cell(), cell({ flavor: "a100" })];
  assert.ok(quotaBars({ cells: two, needs: { [GPU]: 4 } }).every((bar) => bar.parts.every((part) => part.kind !== "pending")));
  const [much] = quotaBars({ cells: [cell()], needs: { [GPU]: 4000 } });
  assert.equal(much!.parts.at(-1)!.width, 0.5);
  assert.equal(much!.notes.at(-1)!.text, "4,000 waited for");
});

test("quota of nothing is a bar without parts", () => {
  const [bar] = quotaBars({ cells: [cell({ nominal: 0, total: 0 })] });
  assert.deepEqual([bar!.parts, bar!.limit], [[], null]);
});

test("quota that stands for no limit says so", () => {
  const [bar] = quotaBars({ cells: [cell({ nominal: 10_000_000, total: 10_000_000, used: 3 })] });
  assert.deepEqual([bar!.used, bar!.total], ["3", "no limit"]);
  assert.equal(bar!.sentence, "h100 GPUs: 3 used, no limit");
});

test("amounts as people write them", () => {
  assert.equal(showAmount("memory", 512 * 2 ** 30), "512Gi");
  assert.equal(showAmount("cpu", 2.5), "2.5");
  assert.equal(cellName("any", "batuta.dev/gpus"), "All GPUs");
  const cells = [cell(), cell({ flavor: "a100" }), cell({ resource: "cpu" })];
  assert.equal(needsText(queue("a", "", { needs: { [GPU]: 12, cpu: 4 }, cells })), "12 GPUs", "CPUs have a bar of their own");
  assert.equal(needsText(queue("a", "", { needs: { [GPU]: 1 }, cells })), "1 GPU");
});
