import assert from "node:assert/strict";
import { test } from "node:test";
import { count, duration, keyAndUnit, number, percent, plural, relative, sentence, shortDuration, since, words } from "../src/lib/format.ts";

test("numbers keep three digits and say when they are not known", () => {
  assert.equal(number(0.123456), "0.123");
  assert.equal(number(100), "100");
  assert.equal(number(0.5), "0.5");
  assert.equal(number(1234567), "1,234,567");
  assert.equal(number(0.00001234), "1.2e-5");
  assert.equal(number(Number.NaN), "–");
  assert.equal(number(null), "–");
  assert.equal(count(1000), "1,000");
  assert.equal(plural(1, "GPU"), "1 GPU");
  assert.equal(plural(4, "GPU"), "4 GPUs");
});

test("nothing is at 100 % before it is done", () => {
  assert.equal(percent(0.999), "99 %");
  assert.equal(percent(1), "100 %");
  assert.equal(percent(0), "0 %");
  assert.equal(percent(null), "–");
});

test("durations have two units at most", () => {
  assert.equal(duration(0.25), "250 ms");
  assert.equal(duration(4.25), "4.3 s");
  assert.equal(duration(59.6), "1 min");
  assert.equal(duration(200), "3 min 20 s");
  assert.equal(duration(7500), "2 h 5 min");
  assert.equal(duration(90000), "1 d 1 h");
  assert.equal(duration(null), "–");
  assert.equal(duration(-3), "0 s");
  assert.equal(shortDuration(7500), "2 h");
});

test("times are told from now", () => {
  assert.equal(relative(100, 101), "just now");
  assert.equal(relative(100, 160), "1 min ago");
  assert.equal(relative(4000, 100), "in 1 h");
  assert.equal(relative(null, 100), "–");
});

test("codes and keys become words", () => {
  assert.equal(words("FAILED_SETUP"), "Failed setup");
  assert.deepEqual(keyAndUnit("gain_s"), ["gain", "s"]);
  assert.deepEqual(keyAndUnit("quota_left"), ["quota left", ""]);
  assert.equal(sentence("has 1 GPUs of 11 GPUs"), "has 1 GPU of 11 GPUs");
});

test("what has happened is never in the future, whatever the clocks say", () => {
  assert.equal(since(105, 100), "just now");
  assert.equal(since(40, 100), "1 min ago");
  assert.equal(relative(105, 100), "in 5 s");
});
