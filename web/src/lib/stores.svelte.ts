// What several views share, each fetched once.

import * as api from "./api.ts";
import { clock } from "./clock.svelte.ts";
import { live } from "./live.svelte.ts";
import { Resource } from "./resource.svelte.ts";
import type { Cluster, ClusterNode, HealthAlert, Job, JobEta, Policies, QueueTree, Session } from "./types.ts";

/** Beyond this many active jobs the table shows the first ones and says so. */
export const MOST_ACTIVE = 5000;

export const cluster = new Resource<Cluster>(
  async () => {
    const value = await api.cluster();
    clock.setServerTime(value.now_s);
    return value;
  },
  { seldom: ["JobProgressed", "JobCheckpointed", "TransitionTimed", "TimePassed", "GpusUsed"] },
);

/** What the guard rail of health keeps in service though it is ill; kept with the nodes, which come with it. */
class Alerts {
  value = $state.raw<readonly HealthAlert[]>([]);
}
export const alerts = new Alerts();

export const nodes = new Resource<ClusterNode[]>(
  async () => {
    const answer = await api.nodes();
    alerts.value = answer.alerts ?? [];
    return answer.nodes;
  },
  {
    on: ["JobStarted", "JobInterrupted", "JobEnded", "NodeAdded", "NodeLost", "NodeReturned", "NodeCordoned", "NodeUncordoned", "GpuFailed", "GpuRepaired", "HealthChanged", "Planned"],
    seldom: ["JobProgressed", "GpusUsed"],
  },
);

/** What changes the numbers of queues. */
export const QUEUE_EVENTS = ["JobSubmitted", "JobStarted", "JobInterrupted", "JobEnded", "JobChanged", "JobWished", "QuotaSet", "Planned"] as const;

export const queues = new Resource<QueueTree>(api.queues, { on: QUEUE_EVENTS });

export const policies = new Resource<Policies>(api.policies, { on: ["PolicySet"] });

export interface Active {
  jobs: Job[];
  total: number;
}

/** Names of all jobs that were active while the page was open. */
const met = new Map<string, string>();

export const active = new Resource<Active>(
  async () => {
    const jobs: Job[] = [];
    let cursor: string | null = null;
    let total = 0;
    do {
      const page: Awaited<ReturnType<typeof api.jobs>> = await api.jobs({ active: true, limit: 1000, cursor, order: "newest" });
      jobs.push(...page.jobs);
      total = page.total;
      cursor = page.next;
    } while (cursor && jobs.length < MOST_ACTIVE);
    for (const job of jobs) met.set(job.id, job.name);
    return { jobs, total: Math.max(total, jobs.length) };
  },
  {
    on: ["JobSubmitted", "JobStarted", "JobInterrupted", "JobEnded", "JobChanged", "JobWished", "Planned", "PolicySet"],
    seldom: ["JobProgressed", "JobCheckpointed"],
  },
);

/** When jobs start and finish, by id. To look ahead is work for the server: it is asked now and then only. */
export const etas = new Resource<ReadonlyMap<string, JobEta>>(async () => new Map((await api.eta()).jobs.map((one) => [one.id, one])), {
  on: ["JobSubmitted", "JobStarted", "JobInterrupted", "JobEnded", "JobChanged", "JobWished", "PolicySet", "QuotaSet", "NodeAdded", "NodeLost"],
  seldom: ["JobProgressed"],
  rest_ms: 15_000,
});

export const looksAhead = (): boolean => cluster.value?.foresight === true;

/** A job's name as far as this page has heard of it. */
export function nameOf(id: string): string {
  void active.value; // Read, so that a component that shows a name updates when there are more.
  return met.get(id) ?? live.names.get(id) ?? "";
}

export const session = new Resource<Session>(api.session, { on: [] });

// Buttons are not shown to users who may not press them; the server decides in the end. Until it has said who
// is signed in, every action is off.

// Where things are changed elsewhere (a cluster's own API), every action is off here too.

const isReadOnly = (): boolean => Boolean(cluster.value?.read_only);

export function mayAdmin(): boolean {
  return session.value?.role === "admin" && !isReadOnly();
}

export function maySubmit(): boolean {
  return (session.value?.role === "admin" || session.value?.role === "user") && !isReadOnly();
}

export function mayChange(job: Job): boolean {
  return mayAdmin() || (session.value?.role === "user" && session.value.user === job.user && !isReadOnly());
}
