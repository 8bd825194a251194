// What can be said of a job without a request to the server: its state in words, whether it is over, what may be done.

import { number, percent, plural } from "./format.ts";
import type { Job, JobState } from "./types.ts";

export const STATES: readonly JobState[] = [
  "RUNNING",
  "RESIZING",
  "SETTING_UP",
  "PENDING",
  "PREEMPTED",
  "SUCCEEDED",
  "FAILED",
  "FAILED_SETUP",
  "CANCELLED",
];

const OVER: ReadonlySet<JobState> = new Set(["SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED"]);
const WAITING: ReadonlySet<JobState> = new Set(["PENDING", "PREEMPTED"]);

export const isOver = (state: JobState): boolean => OVER.has(state);
export const isWaiting = (state: JobState): boolean => WAITING.has(state);
export const isRunning = (state: JobState): boolean => !isOver(state) && !isWaiting(state);

export type Tone = "good" | "busy" | "wait" | "bad" | "quiet";

export function tone(state: JobState): Tone {
  if (state === "RUNNING" || state === "SUCCEEDED") return state === "RUNNING" ? "busy" : "good";
  if (state === "FAILED" || state === "FAILED_SETUP") return "bad";
  if (state === "CANCELLED") return "quiet";
  return state === "PENDING" || state === "PREEMPTED" ? "wait" : "busy";
}

/** How many GPUs it has; of a job that is over, how many it asked for. */
export const size = (job: Job): number => (isOver(job.state) ? job.gpus.wanted : job.gpus.now);

/** "asked for 2, may have 1 to 8": what a size is to be compared with; "" where there is nothing to add. */
export function asked(job: Job): string {
  const elastic = isElastic(job) ? `may have ${job.gpus.min} to ${job.gpus.max}` : "";
  if (isOver(job.state)) return ["asked for", elastic && elastic.replace("may have", "might have had")].filter(Boolean).join(", ");
  return [size(job) === job.gpus.wanted ? (elastic ? "as asked" : "") : `asked for ${job.gpus.wanted}`, elastic].filter(Boolean).join(", ");
}

/** "2 nodes with 4 CPUs each" for a job without GPUs, else "" */
export function cpuText(job: Job): string {
  if (!job.cpu) return "";
  const each = job.cpu.cpus === 1 ? "1 CPU" : `${number(job.cpu.cpus)} CPUs`;
  return `${plural(job.cpu.replicas, "node")} with ${each}${job.cpu.replicas > 1 ? " each" : ""}`;
}

/** The same where there is little room: "asked 2, range 1–8" */
export function askedShort(job: Job): string {
  if (job.cpu) return "on CPU";
  const missing = isOver(job.state) || size(job) === job.gpus.wanted ? "" : `asked ${job.gpus.wanted}`;
  return [missing, isElastic(job) ? `range ${range(job)}` : ""].filter(Boolean).join(", ");
}

/** "1–8", or "" for a job that cannot change its size */
export function range(job: Job): string {
  return job.gpus.min === job.gpus.max ? "" : `${job.gpus.min}–${job.gpus.max}`;
}

export const isElastic = (job: Job): boolean => job.gpus.min !== job.gpus.max;

/** Whether a restart would keep its work, in a few words; "" for a job of one size */
export function checkpointText(job: Job, ago: (time_s: number) => string): string {
  const known = job.checkpoint;
  if (!known) return "";
  if (known.saved_s != null) return ago(known.saved_s);
  return known.seen ? "when asked" : known.restartable ? "not needed" : "none seen";
}

/** Fractional GPUs and CPU-only jobs have no sizes to choose from. */
export const perNode = (job: Job): number => Math.max(1, job.gpus.per_node);

/** How many ranks have, or may have had, a log. */
export function ranks(job: Job): number {
  if (job.cpu) return Math.max(1, job.cpu.replicas);
  const now = job.gpus.now / perNode(job);
  const most = job.gpus.max / perNode(job);
  return Math.max(1, Math.ceil(isOver(job.state) || now === 0 ? most : now));
}

const heard = new WeakMap<Job, number>();

/** How long it has run, without the time for which it waited or was parked; it goes on between two answers of the server. */
export function ranFor(job: Job, now_s: number): number | null {
  if (job.duration_s == null || !isRunning(job.state)) return job.duration_s;
  const heard_s = heard.get(job) ?? now_s;
  heard.set(job, heard_s);
  return job.duration_s + Math.max(0, now_s - heard_s);
}

/** How far it is, for a bar and for words. */
export function fraction(job: Job): number | null {
  if (job.state === "SUCCEEDED") return 1;
  return job.progress?.fraction ?? null;
}

export function progressText(job: Job): string {
  const progress = job.progress;
  if (progress?.step != null && progress.total_steps) return `${progress.step} / ${progress.total_steps} steps`;
  if (progress?.step != null) return `step ${progress.step}`;
  return percent(fraction(job));
}
