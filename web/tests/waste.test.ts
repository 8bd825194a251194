import assert from "node:assert/strict";
import { test } from "node:test";
import type { Account, DayAccount } from "../src/lib/types.ts";
import { choiceOf, dayBars, headline, hours, hourTicks, hrefOf, queueBars, queueDays, share, spanOf, today } from "../src/lib/waste.ts";

const H = 3600;

function account(change: Partial<Account> = {}): Account {
  return {
    capacity_gpu_s: 0,
    used_gpu_s: 0,
    unused_gpu_s: 0,
    restarting_gpu_s: 0,
    lost_gpu_s: 0,
    idle_gpu_s: 0,
    fragmented_gpu_s: 0,
    unavailable_gpu_s: 0,
    waiting_gpu_s: 0,
    ...change,
  };
}

const day = (name: string, change: Partial<Account>): DayAccount => ({ ...account(change), day: name, queues: [], users: [] });

test("a bar is as high as its day has GPU-hours, and its parts make it up", () => {
  const [first, second] = dayBars([
    day("2026-11-15", { capacity_gpu_s: 100 * H, used_gpu_s: 60 * H, idle_gpu_s: 40 * H }),
    day("2026-11-16", { capacity_gpu_s: 50 * H, used_gpu_s: 50 * H }),
  ]);
  assert.deepEqual(first!.parts, [
    { key: "used", height: 0.6 },
    { key: "idle", height: 0.4 },
  ]);
  assert.deepEqual(second!.parts, [{ key: "used", height: 0.5 }]);
  assert.equal(first!.sentence, "2026-11-15: 100 GPU-hours, used 60, idle 40");
  assert.equal(first!.label, "11-15");
});

test("the side of the bars has a few round numbers of GPU-hours", () => {
  const texts = (gpu_hours: number) => hourTicks([day("2026-11-16", { capacity_gpu_s: gpu_hours * H })]).map((tick) => tick.text);
  assert.deepEqual(texts(192), ["0", "50", "100", "150"]);
  assert.deepEqual(texts(0.408), ["0", "0.2", "0.4"]);
  assert.deepEqual(texts(10), ["0", "5", "10"]);
  assert.deepEqual(texts(12_288), ["0", "5,000", "10,000"]);
  assert.deepEqual(texts(0), []);
  for (const most of [0.013, 1, 7, 99, 5001]) assert.ok(texts(most).length >= 3 && texts(most).length <= 6, String(texts(most)));
  assert.equal(hourTicks([day("2026-11-16", { capacity_gpu_s: 200 * H })]).at(-1)!.height, 1);
});

test("days without GPUs have no bar", () => {
  assert.deepEqual(dayBars([]), []);
  assert.deepEqual(dayBars([day("2026-11-16", {})])[0]!.parts, []);
});

test("queues come by what they held, the largest first", () => {
  const bars = queueBars([
    { queue: "small", used_gpu_s: H, unused_gpu_s: 0, restarting_gpu_s: 0, lost_gpu_s: 0, waiting_gpu_s: 9 * H },
    { queue: "large", used_gpu_s: H, unused_gpu_s: H, restarting_gpu_s: H, lost_gpu_s: H, waiting_gpu_s: 0 },
  ]);
  assert.deepEqual(
    bars.map((bar) => bar.queue),
    ["large", "small"],
  );
  assert.deepEqual(bars[0]!.parts, [
    { key: "used", width: 0.25 },
    { key: "unused", width: 0.25 },
    { key: "restarting", width: 0.25 },
    { key: "lost", width: 0.25 },
  ]);
  assert.match(bars[1]!.sentence, /^small: used 1, not busy 0, restarts 0, lost work 0, waited for 9 GPU-hours$/);
});

test("the days of one queue are what its jobs held", () => {
  const own = { queue: "lab", used_gpu_s: 3 * H, unused_gpu_s: 0, restarting_gpu_s: H, lost_gpu_s: 0, waiting_gpu_s: 5 * H };
  const days: DayAccount[] = [{ ...day("2026-11-15", { capacity_gpu_s: 100 * H, idle_gpu_s: 96 * H }), queues: [own] }, day("2026-11-16", { capacity_gpu_s: 100 * H })];
  const [first, second] = queueDays(days, "lab");
  assert.deepEqual([first!.capacity_gpu_s, first!.idle_gpu_s, first!.waiting_gpu_s], [4 * H, 0, 5 * H]);
  assert.equal(second!.capacity_gpu_s, 0);
  assert.equal(dayBars([first!])[0]!.sentence, "2026-11-15: 4 GPU-hours, used 3, restarts 1");
});

test("shares are told as people read them", () => {
  assert.equal(hours(0), "0");
  assert.equal(hours(2), "< 0.001");
  assert.equal(hours(10), "0.00278");
  assert.equal(hours(1.5 * H), "1.5");
  assert.equal(share(0, 10), "0 %");
  assert.equal(share(1, 8), "12.5 %");
  assert.equal(share(1, 100_000), "< 0.1 %");
  assert.equal(share(10, 10), "100 %");
  assert.equal(share(1, 0), "–");
  assert.equal(headline(account({ capacity_gpu_s: 8 * H, used_gpu_s: 2 * H })), "25.0 % of 8 GPU-hours were used");
  assert.equal(headline(account()), "There were no GPUs");
});

test("the address says which time, and nonsense is the last week", () => {
  const now = Date.parse("2026-11-16T12:00:00Z") / 1000;
  const span = (query: string) => spanOf(choiceOf(new URLSearchParams(query)), now);
  assert.deepEqual(span(""), { from_s: now - 7 * 86_400, to_s: null });
  assert.deepEqual(span("range=1d"), { from_s: now - 86_400, to_s: null });
  assert.deepEqual(span("range=century"), span(""));
  assert.deepEqual(span("from=2026-11-01"), { from_s: Date.parse("2026-11-01T00:00:00Z") / 1000, to_s: null });
  assert.deepEqual(span("from=2026-11-01&to=2026-11-02"), { from_s: Date.parse("2026-11-01T00:00:00Z") / 1000, to_s: Date.parse("2026-11-03T00:00:00Z") / 1000 });
  assert.deepEqual(span("from=2026-11-05&to=2026-11-02"), span(""));
  assert.deepEqual(span("from=2026-99-99"), span(""));
  assert.equal(hrefOf({ from: "2026-11-01", to: "" }), "#/waste?from=2026-11-01");
  assert.equal(today(now), "2026-11-16");
});
