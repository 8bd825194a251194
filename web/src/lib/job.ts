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

/** How many GPUs it has; of a job that is over, how many it asked for. */
export const size = (job: Job): number => (isOver(job.state) ? job.gpus.wanted : job.gpus.now);

/** "asked for 2, may have 1 to 8": what a size is to be compared with; "" where there is nothing to add. */
export function asked(job: Job): string {
  const elastic = isElastic(job) ? `may have ${job.gpus.min} to ${job.gpus.max}` : "";
  if (isOver(job.state)) return ["asked for", elastic && elastic.replace("may have", "might have had")].filter(Boolean).join(", ");
  return [size(job) === job.gpus.wanted ? (elastic ? "as asked" : "") : `asked for ${job.gpus.wanted}`, elastic].filter(Boolean).join(", ");
}

/** The same where there is little room: "asked 2 · 1–8" */
export function askedShort(job: Job): string {
  const missing = isOver(job.state) || size(job) === job.gpus.wanted ? "" : `asked ${job.gpus.wanted}`;
  return [missing, range(job)].filter(Boolean).join(" · ");
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
