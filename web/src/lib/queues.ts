// What a queue's bars show: used within the quota, borrowed beyond it, lent to others.

import type { Queue } from "./types.ts";

export interface QueueRow {
  type: string;
  used: number;
  quota: number | null;
  borrowed: number;
  lent: number;
  /** 0…1 of the bar */
  ownShare: number;
  borrowedShare: number;
  lentShare: number;
  quotaShare: number;
}

/** One row per GPU type that has a quota; without any, one for all of them together. */
export function queueRows(queue: Queue, clusterGpus: number): QueueRow[] {
  const limited = Object.keys(queue.quota);
  const types = limited.length ? limited : ["*"];
  return types.map((type) => {
    const used = queue.used[type] ?? (type === "*" ? Object.entries(queue.used).reduce((sum, [key, n]) => (key === "*" ? sum : sum + n), 0) : 0);
    const quota = queue.quota[type] ?? null;
    const borrowed = queue.borrowed[type] ?? 0;
    const lent = queue.lent[type] ?? 0;
    const whole = Math.max(1, quota == null ? clusterGpus : Math.max(quota, used));
    return {
      type,
      used,
      quota,
      borrowed,
      lent,
      ownShare: Math.min(1, Math.max(0, used - borrowed) / whole),
      borrowedShare: Math.min(1, borrowed / whole),
      lentShare: Math.min(1, lent / whole),
      quotaShare: quota == null ? 1 : Math.min(1, quota / whole),
    };
  });
}
