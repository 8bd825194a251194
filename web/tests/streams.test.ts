import assert from "node:assert/strict";
import { test } from "node:test";
import { feedLines, merge, parseEvents, type LiveEvent } from "../src/lib/feed.ts";
import { clean, LogBuffer, pieces } from "../src/lib/logbuffer.ts";
import { jobHref, parse, userHref } from "../src/lib/route.ts";

const event = (seq: number, type: LiveEvent["type"], data: Record<string, unknown>): LiveEvent => ({ seq, type, time_s: 1, data });

test("each command of a plan is a line", () => {
  const commands = [
    { type: "Start", job: "1", reason: "ADMITTED", sentence: "starts with 2 GPUs", gpus: 2 },
    { type: "Resize", job: "2", reason: "SHRANK", sentence: "gives GPUs", gpus: 1 },
  ];
  const lines = feedLines(event(7, "Planned", { commands }));
  assert.deepEqual(
    lines.map((line) => [line.key, line.kind, line.icon, line.job]),
    [
      ["7.0", "decision", "play", "1"],
      ["7.1", "decision", "shrink", "2"],
    ],
  );
});

test("what only machines care about is no line", () => {
  assert.deepEqual(feedLines(event(1, "JobProgressed", { job: "1" })), []);
  assert.deepEqual(feedLines(event(1, "TimePassed", {})), []);
});

test("jobs and nodes are named, whole or by id", () => {
  assert.equal(feedLines(event(1, "JobSubmitted", { job: { id: "4", name: "x" } }))[0]?.job, "4");
  assert.equal(feedLines(event(1, "JobEnded", { job: "4", state: "FAILED", detail: "oops" }))[0]?.text, "failed: oops");
  assert.equal(feedLines(event(1, "NodeCordoned", { node: "node-0" }))[0]?.text, "Node node-0 was cordoned");
});

test("newest first, once, and not for ever", () => {
  const line = (seq: number) => feedLines(event(seq, "JobStarted", { job: "1" }));
  const first = merge([], [...line(1), ...line(2)]);
  assert.deepEqual(first.map((one) => one.seq), [2, 1]);
  assert.deepEqual(merge(first, [...line(2), ...line(3)]).map((one) => one.seq), [3, 2, 1]);
  assert.equal(merge(first, line(3), 2).length, 2);
});

test("the past that arrives late finds its place", () => {
  const line = (seq: number) => feedLines(event(seq, "JobStarted", { job: "1" }));
  assert.deepEqual(merge([...line(9)], [...line(1), ...line(2)]).map((one) => one.seq), [9, 2, 1]);
  // On a busy machine the stream and the past come in one batch, in any order.
  assert.deepEqual(merge([], [...line(3), ...line(1), ...line(2), ...line(3)]).map((one) => one.seq), [3, 2, 1]);
});

test("a finite stream is read frame by frame", () => {
  const wire = ': hello\nid: 3\n\nevent: JobStarted\ndata: {"time_s":5,"job":"1"}\nid: 4\n\nevent: Unheard\ndata: {}\nid: 5\n\n';
  assert.deepEqual(parseEvents(wire), [{ seq: 4, type: "JobStarted", time_s: 5, data: { time_s: 5, job: "1" } }]);
});

test("a log is whole lines, however it was cut", () => {
  const log = new LogBuffer(3);
  log.push("one\ntw");
  assert.equal(log.text, "one\ntw");
  log.push("o\n\u001b[31mthree\u001b[0m\n");
  assert.equal(log.text, "one\ntwo\nthree");
  log.push("4\n5\n6\n");
  assert.equal(log.text, "4\n5\n6");
  assert.equal(log.dropped, 3);
});

test("progress bars keep their last state", () => {
  assert.equal(clean("10%\r50%\r100%"), "100%");
  assert.equal(clean("windows\r"), "windows");
});

test("routes", () => {
  assert.equal(parse("").page, "overview");
  assert.equal(parse("#/jobs").page, "jobs");
  assert.deepEqual([parse(jobHref("a/b")).page, parse(jobHref("a/b")).id], ["job", "a/b"]);
  assert.equal(parse("#/jobs?q=x").query.get("q"), "x");
  assert.deepEqual([parse(userHref("ana@lab")).page, parse(userHref("ana@lab")).id], ["user", "ana@lab"]);
  assert.equal(parse("#/nothing/here").page, "unknown");
  assert.equal(parse("#/jobs/%E0%A4%A").id, "%E0%A4%A");
});

test("what is sought in a line is marked wherever it stands, and read as it is written", () => {
  assert.deepEqual(pieces("Error: an error (x.*)", "ERROR").map((piece) => [piece.text, piece.hit]), [
    ["Error", true],
    [": an ", false],
    ["error", true],
    [" (x.*)", false],
  ]);
  assert.deepEqual(pieces("a (x.*) b", "(x.*)").filter((piece) => piece.hit).map((piece) => piece.text), ["(x.*)"]);
  assert.deepEqual(pieces("nothing", ""), [{ text: "nothing", hit: false }]);
});
