// Where the GPU time went: spans of time that can be asked for, and bars of what became of each hour.

import { number } from "./format.ts";
import type { Account, DayAccount, QueueSpent, Spent } from "./types.ts";

export const HOUR_S = 3600;
export const DAY_S = 86_400;

export interface Kind {
  key: "used" | "unused" | "restarting" | "lost" | "fragmented" | "idle" | "unavailable";
  name: string;
  meaning: string;
}

/** The parts of the capacity, from what is good to what cannot be helped. */
export const KINDS: readonly Kind[] = [
  { key: "used", name: "Used", meaning: "jobs kept GPUs busy, and kept their progress" },
  { key: "unused", name: "Not busy", meaning: "jobs held GPUs that were not busy, as measured" },
  { key: "restarting", name: "Restarts", meaning: "jobs held GPUs while they started or were resized" },
  { key: "lost", name: "Lost work", meaning: "progress after the last checkpoint, thrown away" },
  { key: "fragmented", name: "Fragmented", meaning: "free, but of no use to the smallest job that waited" },
  { key: "idle", name: "Idle", meaning: "free, and no job waited for it" },
  { key: "unavailable", name: "Out of service", meaning: "ill, cordoned or used by others" },
];
/** Those that a queue or a user has a part in. */
export const HELD = KINDS.slice(0, 4);

export const amount = (account: Spent | Account, key: Kind["key"]): number => (account as unknown as Record<string, number>)[`${key}_gpu_s`] ?? 0;

/** "1,234" hours, "3.5", "0.02", "0.004"; less than a GPU-second or two does not matter. */
export const hours = (gpu_s: number): string => (gpu_s > 0 && gpu_s < 0.001 * HOUR_S ? "< 0.001" : number(gpu_s / HOUR_S));

/** "12.5 %", with a digit behind the point where it matters. */
export function share(part: number, whole: number): string {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  return `${percent >= 99.95 || percent === 0 ? percent.toFixed(0) : percent < 0.05 ? "< 0.1" : percent.toFixed(1)} %`;
}

export function headline(total: Account): string {
  if (!total.capacity_gpu_s) return "There were no GPUs";
  return `${share(total.used_gpu_s, total.capacity_gpu_s)} of ${hours(total.capacity_gpu_s)} GPU-hours were used`;
}

export interface Part {
  key: Kind["key"];
  /** Of the height of the highest bar, 0…1 */
  height: number;
}

export interface DayBar {
  day: string;
  /** "11-16" */
  label: string;
  parts: Part[];
  sentence: string;
}

export interface Tick {
  /** "100" */
  text: string;
  /** Of the height of the highest bar, 0…1 */
  height: number;
}

/** Two to five round numbers of GPU-hours for the side of the bars, none above the highest. */
export function hourTicks(days: readonly DayAccount[]): Tick[] {
  const most = Math.max(...days.map((day) => day.capacity_gpu_s), 0) / HOUR_S;
  if (!(most > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(most / 2));
  const step = [5, 2, 1].map((times) => times * power).find((size) => size <= most / 2) ?? power;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => ({ text: number(at * step), height: (at * step) / most }));
}

/** A bar for each day, as high as its GPU-hours. */
export function dayBars(days: readonly DayAccount[]): DayBar[] {
  const most = Math.max(...days.map((day) => day.capacity_gpu_s), 0) || 1;
  return days.map((day) => ({
    day: day.day,
    label: day.day.slice(5),
    parts: KINDS.map(({ key }) => ({ key, height: amount(day, key) / most })).filter((part) => part.height > 0),
    sentence: daySentence(day),
  }));
}

/** The same of one queue: what its jobs held, and no more. */
export function queueDays(days: readonly DayAccount[], queue: string): DayAccount[] {
  return days.map((day) => {
    const own = day.queues.find((one) => one.queue === queue);
    const held = own ? HELD.reduce((sum, { key }) => sum + amount(own, key), 0) : 0;
    const none = { used_gpu_s: 0, unused_gpu_s: 0, restarting_gpu_s: 0, lost_gpu_s: 0, waiting_gpu_s: 0 };
    return { ...none, ...own, day: day.day, queues: [], users: [], capacity_gpu_s: held, idle_gpu_s: 0, fragmented_gpu_s: 0, unavailable_gpu_s: 0 };
  });
}

export function daySentence(day: DayAccount): string {
  const told = KINDS.filter(({ key }) => amount(day, key) > 0).map(({ key, name }) => `${name.toLowerCase()} ${hours(amount(day, key))}`);
  return `${day.day}: ${hours(day.capacity_gpu_s)} GPU-hours${told.length ? `, ${told.join(", ")}` : ""}`;
}

export interface QueueBar {
  queue: string;
  parts: { key: Kind["key"]; width: number }[];
  sentence: string;
}

/** What each queue held, as long as its share of the largest one. The largest comes first. */
export function queueBars(queues: readonly QueueSpent[]): QueueBar[] {
  const held = (one: QueueSpent): number => HELD.reduce((sum, { key }) => sum + amount(one, key), 0);
  const most = Math.max(...queues.map(held), 0) || 1;
  return [...queues]
    .sort((a, b) => held(b) - held(a) || (a.queue < b.queue ? -1 : 1))
    .map((one) => ({
      queue: one.queue,
      parts: HELD.map(({ key }) => ({ key, width: amount(one, key) / most })).filter((part) => part.width > 0),
      sentence: `${one.queue}: ${HELD.map(({ key, name }) => `${name.toLowerCase()} ${hours(amount(one, key))}`).join(", ")}, waited for ${hours(one.waiting_gpu_s)} GPU-hours`,
    }));
}

// ---- which time

export interface Span {
  from_s: number;
  /** null: up to now */
  to_s: number | null;
}

export const RANGES = [
  { key: "1d", text: "24 hours", days: 1 },
  { key: "7d", text: "7 days", days: 7 },
  { key: "30d", text: "30 days", days: 30 },
] as const;

export interface Choice {
  /** Of `RANGES`; empty when days are chosen. */
  range: string;
  /** "2026-11-16", the first and the last day, UTC; empty for none. */
  from: string;
  to: string;
}

/** What the address asks for; whatever is no date counts as absent. */
export function choiceOf(query: URLSearchParams): Choice {
  const [from, to] = [day(query.get("from")), day(query.get("to"))];
  if (from && (!to || from <= to)) return { range: "", from, to };
  const known = RANGES.find((one) => one.key === query.get("range"));
  return { range: known?.key ?? "7d", from: "", to: "" };
}

export function spanOf(choice: Choice, now_s: number): Span {
  if (choice.from) {
    return { from_s: seconds(choice.from), to_s: choice.to ? seconds(choice.to) + DAY_S : null };
  }
  const days = RANGES.find((one) => one.key === choice.range)?.days ?? 7;
  return { from_s: Math.floor(now_s - days * DAY_S), to_s: null };
}

export function hrefOf(choice: Partial<Choice>): string {
  const entries = Object.entries(choice).filter(([, value]) => value);
  return entries.length ? `#/waste?${new URLSearchParams(entries)}` : "#/waste";
}

export const today = (now_s: number): string => new Date(now_s * 1000).toISOString().slice(0, 10);

const seconds = (date: string): number => Date.parse(`${date}T00:00:00Z`) / 1000;

function day(text: string | null): string {
  return text && /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(seconds(text)) ? text : "";
}
