import assert from "node:assert/strict";
import { test } from "node:test";
import { advise } from "../src/lib/advice.ts";
import { jobColour, JOB_COLOURS } from "../src/lib/colour.ts";
import { inScope, matches, sorted, waitingFirst } from "../src/lib/joblist.ts";
import { asked, askedShort, checkpointText, cpuText, progressText, ranFor, range, ranks, size } from "../src/lib/job.ts";
import { job } from "./samples.ts";

test("unknown values come last both ways, ties go to the newest", () => {
  const jobs = [job("1", { eta_s: 5 }), job("2"), job("3", { eta_s: 1 }), job("4", { eta_s: 5 })];
  const ids = (descending: boolean): string[] => sorted(jobs, { key: "eta", descending }).map((one) => one.id);
  assert.deepEqual(ids(false), ["3", "4", "1", "2"]);
  assert.deepEqual(ids(true), ["4", "1", "3", "2"]);
});

test("ids are numbers where they are numbers", () => {
  assert.deepEqual(sorted([job("10"), job("9"), job("100")], { key: "id", descending: false }).map((one) => one.id), ["9", "10", "100"]);
});

test("a filter wants every word, and can name the place", () => {
  const one = job("17", { name: "resnet", user: "ana", queue: "research", reason: { code: "QUOTA_REACHED", sentence: "", evidence: {} } });
  assert.ok(matches(one, ""));
  assert.ok(matches(one, "RES ana"));
  assert.ok(matches(one, "#17"));
  assert.ok(matches(one, "queue:research"));
  assert.ok(matches(one, "quota"));
  assert.ok(!matches(one, "queue:ana"));
  assert.ok(!matches(one, "resnet ben"));
});

test("scopes", () => {
  assert.ok(inScope(job("1", { state: "RESIZING" }), "running"));
  assert.ok(inScope(job("1", { state: "PREEMPTED" }), "waiting"));
  assert.ok(!inScope(job("1", { state: "FAILED" }), "active"));
  assert.ok(inScope(job("1", { state: "FAILED" }), "finished"));
});

test("sizes and ranks in words", () => {
  const gpus = { now: 4, wanted: 8, min: 8, max: 8, per_node: 4, type: "H100" };
  assert.equal(range(job("1", { gpus })), "");
  assert.equal(ranks(job("1", { gpus })), 1);
  assert.equal(ranks(job("1", { gpus, state: "SUCCEEDED" })), 2);
  assert.equal(progressText(job("1")), "–");
});

test("neighbours have different colours", () => {
  const colours = Array.from({ length: JOB_COLOURS }, (_, id) => jobColour(String(id)));
  assert.equal(new Set(colours).size, JOB_COLOURS);
  assert.ok(jobColour("not-a-number") < JOB_COLOURS);
});

test("a job that waits is told the size at which it would start", () => {
  const waits = job("1", {
    state: "PENDING",
    gpus: { now: 0, wanted: 8, min: 4, max: 8, per_node: 1, type: "any" },
    reason: { code: "WAITING_FOR_GPUS", sentence: "", evidence: { needs: 4, free: 2 } },
  });
  const [first] = advise(waits, null);
  assert.deepEqual(first?.action, { kind: "resize", min_nodes: 2, label: "Allow 2 nodes at least" });
  assert.deepEqual(advise(job("1"), null), []);
});

test("a list begins with what waits, then what runs, then what is over; the newest of each first", () => {
  const jobs = [job("1", { state: "SUCCEEDED" }), job("2", { state: "RUNNING" }), job("3", { state: "PENDING" }), job("4", { state: "FAILED" }), job("5", { state: "PREEMPTED" }), job("6", { state: "RESIZING" })];
  assert.deepEqual(waitingFirst(jobs).map((one) => one.id), ["5", "3", "6", "2", "4", "1"]);
});

test("what a job has, what it asked for and what it may have are told apart", () => {
  const elastic = job("1", { state: "RUNNING", gpus: { now: 8, wanted: 2, min: 1, max: 8, per_node: 1, type: "any" } });
  assert.equal(size(elastic), 8);
  assert.equal(asked(elastic), "asked for 2, may have 1 to 8");
  assert.equal(askedShort(elastic), "asked 2, range 1–8");
  const rigid = job("2", { state: "PENDING", gpus: { now: 0, wanted: 4, min: 4, max: 4, per_node: 1, type: "any" } });
  assert.equal(asked(rigid), "asked for 4");
  assert.equal(asked(job("3", { state: "RUNNING", gpus: { ...rigid.gpus, now: 4 } })), "");
  const over = job("4", { state: "SUCCEEDED", gpus: { ...elastic.gpus, now: 0 } });
  assert.deepEqual([size(over), askedShort(over)], [2, "range 1–8"]);
});

test("whether a restart keeps the work of an elastic job is told in a few words", () => {
  const told = (seen: boolean, saved_s: number | null, restartable: boolean): string =>
    checkpointText(job("1", { checkpoint: { seen, saved_s, restartable, sentence: "" } }), (time_s) => `at ${time_s}`);
  assert.equal(told(false, null, false), "none seen");
  assert.equal(told(false, null, true), "not needed");
  assert.equal(told(true, null, false), "when asked");
  assert.equal(told(true, 7, false), "at 7");
  assert.equal(checkpointText(job("1"), () => ""), "");
  const kept = job("1", { reason: { code: "KEEPS_SIZE", sentence: "", evidence: {} } });
  assert.match(advise(kept, null)[0]?.text ?? "", /elastic\.restartable: true/);
});

test("a job without GPUs has nodes with CPUs, and a log for each of them", () => {
  const gpus = { now: 0, wanted: 0, min: 0, max: 0, per_node: 0, type: "any" };
  const two = job("1", { gpus, cpu: { replicas: 2, now: 2, cpus: 4, memory_mib: 0 } });
  assert.equal(cpuText(two), "2 nodes with 4 CPUs each");
  assert.equal(askedShort(two), "on CPU");
  assert.equal(ranks(two), 2);
  assert.equal(cpuText(job("2")), "");
});

test("a job has run for as long as the server says, and not since it first started", () => {
  const parked = job("1", { state: "PREEMPTED", started_s: 1000, duration_s: 60 });
  assert.equal(ranFor(parked, 5000), 60);
  const runs = job("2", { started_s: 1000, duration_s: 60 });
  assert.equal(ranFor(runs, 5000), 60);
  assert.equal(ranFor(runs, 5007), 67);
  assert.equal(ranFor(job("3", { state: "PENDING", started_s: null }), 5000), null);
});
