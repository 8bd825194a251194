// What can be said of a job without asking anybody: its state in words, whether it is over, what may be done.

import { percent } from "./format.ts";
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

/** "2 / 4": what it has of what it asked for; one number when they are the same. */
export function size(job: Job): string {
  return isOver(job.state) ? `${job.gpus.wanted}` : `${job.gpus.now} / ${job.gpus.wanted}`;
}

/** "1–8", or "" for a job that cannot change its size */
export function range(job: Job): string {
  return job.gpus.min === job.gpus.max ? "" : `${job.gpus.min}–${job.gpus.max}`;
}

export const isElastic = (job: Job): boolean => job.gpus.min !== job.gpus.max;

/** Fractional GPUs and CPU-only jobs have no sizes to choose from. */
export const perNode = (job: Job): number => Math.max(1, job.gpus.per_node);

/** How many ranks have, or may have had, a log. */
export function ranks(job: Job): number {
  const now = job.gpus.now / perNode(job);
  const most = job.gpus.max / perNode(job);
  return Math.max(1, Math.ceil(isOver(job.state) || now === 0 ? most : now));
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
