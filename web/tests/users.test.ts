import assert from "node:assert/strict";
import { test } from "node:test";
import { held_gpu_s, userRows, wasted_gpu_s } from "../src/lib/users.ts";
import { job } from "./samples.ts";

const gpus = (now: number) => ({ now, wanted: 4, min: 4, max: 4, per_node: 1, type: "any" });

test("users come by the GPUs that they have, then by the time that they had", () => {
  const spent = { used_gpu_s: 60, unused_gpu_s: 20, restarting_gpu_s: 10, lost_gpu_s: 10, waiting_gpu_s: 5 };
  const rows = userRows(
    [job("1", { user: "ana", state: "RUNNING", gpus: gpus(4) }), job("2", { user: "ana", state: "PENDING", gpus: gpus(0) }), job("3", { user: "ben", state: "PREEMPTED", gpus: gpus(0) })],
    [
      { user: "ben", ...spent },
      { user: "cleo", ...spent, used_gpu_s: 600 },
    ],
  );
  assert.deepEqual(
    rows.map((row) => [row.user, row.gpus, row.running, row.waiting]),
    [
      ["ana", 4, 1, 1],
      ["cleo", 0, 0, 0],
      ["ben", 0, 0, 1],
    ],
  );
  assert.deepEqual([held_gpu_s(rows[2]!.spent), wasted_gpu_s(rows[2]!.spent)], [100, 40]);
  assert.equal(held_gpu_s(rows[0]!.spent), 0);
});
