// Filter and order of the job table.

import { fraction, isOver, isRunning, isWaiting, STATES } from "./job.ts";
import type { Job } from "./types.ts";

export type SortKey = "id" | "name" | "user" | "queue" | "state" | "gpus" | "progress" | "eta" | "submitted" | "duration";
export type Scope = "active" | "running" | "waiting" | "finished" | "all";

export interface Sort {
  key: SortKey;
  descending: boolean;
}

/** Where people want the largest or newest first at the first click. */
export const DESCENDING_FIRST: ReadonlySet<SortKey> = new Set(["id", "gpus", "progress", "submitted", "duration"]);

const order = new Map(STATES.map((state, at) => [state, at]));

type Left = (job: Job) => number | null;

function value(job: Job, key: SortKey, left_s: Left): number | string | null {
  switch (key) {
    case "id":
      return Number(job.id) || job.id;
    case "state":
      return order.get(job.state) ?? 99;
    case "gpus":
      return job.gpus.now;
    case "progress":
      return fraction(job);
    case "eta":
      return left_s(job);
    case "submitted":
      return job.submitted_s;
    case "duration":
      return job.duration_s;
    default:
      return job[key];
  }
}

function compare(a: number | string, b: number | string): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/**
 * Unknown values come last whichever way it is sorted; equal ones stay in the order of their numbers.
 * `left_s`: how long a job takes from now on.
 */
export function sorted(jobs: readonly Job[], sort: Sort, left_s: Left = (job) => job.eta_s): Job[] {
  const sign = sort.descending ? -1 : 1;
  return [...jobs].sort((a, b) => {
    const x = value(a, sort.key, left_s);
    const y = value(b, sort.key, left_s);
    if (x == null || y == null) return x == null ? (y == null ? tie(a, b) : 1) : -1;
    return sign * compare(x, y) || tie(a, b);
  });
}

/** What a list begins with where no column is chosen: jobs that wait, those that run, those that are over; the newest of each first. */
export function waitingFirst(jobs: readonly Job[]): Job[] {
  const rank = (job: Job): number => (isWaiting(job.state) ? 0 : isOver(job.state) ? 2 : 1);
  return [...jobs].sort((a, b) => rank(a) - rank(b) || tie(a, b));
}

const tie = (a: Job, b: Job): number => compare(Number(b.id) || b.id, Number(a.id) || a.id);

export function inScope(job: Job, scope: Scope): boolean {
  switch (scope) {
    case "active":
      return !isOver(job.state);
    case "running":
      return isRunning(job.state);
    case "waiting":
      return isWaiting(job.state);
    case "finished":
      return isOver(job.state);
    case "all":
      return true;
  }
}

/** Every word has to be found: in id, name, user, queue, state or reason. `user:ana` looks in one place only. */
export function matches(job: Job, query: string): boolean {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const places: Record<string, string> = {
    id: job.id,
    name: job.name,
    user: job.user,
    queue: job.queue,
    state: job.state,
    reason: job.reason?.code ?? "",
  };
  return words.every((word) => {
    const [, place, rest] = /^(\w+):(.+)$/.exec(word) ?? [];
    if (place && rest && place in places) return places[place]!.toLowerCase().includes(rest);
    const bare = word.replace(/^#/, "");
    return Object.values(places).some((text) => text.toLowerCase().includes(bare));
  });
}
