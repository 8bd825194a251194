// Who uses the cluster: the jobs and GPUs of each user now, and where their GPU time went.

import { isWaiting } from "./job.ts";
import type { Job, UserSpent } from "./types.ts";

export interface UserRow {
  user: string;
  running: number;
  waiting: number;
  /** GPUs that its jobs have now. */
  gpus: number;
  spent: UserSpent;
}

const NOTHING = { used_gpu_s: 0, unused_gpu_s: 0, restarting_gpu_s: 0, lost_gpu_s: 0, waiting_gpu_s: 0 };

/** Users with jobs, or with GPU time in the past: by GPUs held, then by time used, the most first. */
export function userRows(jobs: readonly Job[], spent: readonly UserSpent[]): UserRow[] {
  const rows = new Map<string, UserRow>();
  const row = (user: string): UserRow => {
    const known = rows.get(user) ?? { user, running: 0, waiting: 0, gpus: 0, spent: { ...NOTHING, user } };
    rows.set(user, known);
    return known;
  };
  for (const own of spent) row(own.user).spent = own;
  for (const job of jobs) {
    const own = row(job.user);
    own.gpus += job.gpus.now;
    if (isWaiting(job.state)) own.waiting += 1;
    else own.running += 1;
  }
  return [...rows.values()].sort((a, b) => b.gpus - a.gpus || held_gpu_s(b.spent) - held_gpu_s(a.spent) || (a.user < b.user ? -1 : 1));
}

/** GPU time that jobs had, whatever became of it. */
export const held_gpu_s = (spent: UserSpent): number => spent.used_gpu_s + wasted_gpu_s(spent);

/** Of that, what was of no use: GPUs that were not busy, restarts, work that was lost. */
export const wasted_gpu_s = (spent: UserSpent): number => spent.unused_gpu_s + spent.restarting_gpu_s + spent.lost_gpu_s;
