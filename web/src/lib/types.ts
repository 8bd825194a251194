// The shapes of docs/reference/http-api.md. A `?` is for what an older or newer server may leave out.

export type JobState =
  | "PENDING"
  | "SETTING_UP"
  | "RUNNING"
  | "RESIZING"
  | "PREEMPTED"
  | "SUCCEEDED"
  | "FAILED"
  | "FAILED_SETUP"
  | "CANCELLED";

export type Wish = "run" | "park" | "cancel";

export interface Reason {
  code: string;
  sentence: string;
  evidence: Record<string, number | string | null>;
}

export interface Progress {
  fraction: number | null;
  step: number | null;
  total_steps: number | null;
  epoch: number | null;
  loss: number | null;
  step_s: number | null;
  samples_per_s: number | null;
  epoch_s: number | null;
}

export interface JobGpus {
  now: number;
  wanted: number;
  min: number;
  max: number;
  per_node: number;
  type: string;
  share?: Share | null;
}

/** A part of one GPU. */
export interface Share {
  memory_mib: number;
  compute_percent: number;
}

/** Whether a restart keeps the work of an elastic job; without that, it keeps its size. */
export interface CheckpointSeen {
  seen: boolean;
  /** null before the first one */
  saved_s: number | null;
  restartable: boolean;
  /** What follows from it; empty when it may be resized. */
  sentence: string;
}

export interface Job {
  id: string;
  name: string;
  user: string;
  queue: string;
  kind: string;
  priority: number;
  state: JobState;
  wish: Wish;
  gpus: JobGpus;
  /** What a job without GPUs has and asks for; null for one with GPUs */
  cpu?: { replicas: number; now: number; cpus: number; memory_mib: number } | null;
  placement: { node: string; gpus: number[] }[];
  progress: Progress | null;
  eta_s: number | null;
  submitted_s: number;
  started_s: number | null;
  ended_s: number | null;
  duration_s: number | null;
  waited_s: number | null;
  restarts: number;
  exit_code: number | null;
  detail: string;
  reason: Reason | null;
  /** null for a job of one size, and for one that is over */
  checkpoint?: CheckpointSeen | null;
  /** Only where one job is asked for, and it is not over. */
  quota_reserved?: QuotaReserved | null;
  /** Only where one job is asked for: where its ports are reached while it runs. */
  endpoints?: string[];
  task?: unknown;
}

export interface JobPage {
  jobs: Job[];
  next: string | null;
  total: number;
}

export interface Gpu {
  index: number;
  healthy: boolean;
  jobs: { id: string; share: Share | null }[];
  /** 0…1; null when it is not measured */
  utilisation: number | null;
  /** null or absent: nothing is known against it */
  health?: HealthShown | null;
}

export type HealthState = "healthy" | "suspect" | "ill" | "burn-in" | "probation";

/** What is known of the health of a GPU or node. */
export interface HealthShown {
  state: HealthState;
  reason: string;
  since_s: number;
  /** `health`, or a human's name. */
  who: string;
  /** What has to be done about it; empty: nothing, or it is done. */
  remedy: string;
  /** Ill, and yet in service: too much of its pool is out already. */
  held: boolean;
  /** When its probation ends. */
  until_s: number | null;
  /** How many returns in a row did not last. */
  flaps: number;
  /** Errors that are remembered. */
  incidents: number;
}

/** An administrator has to look: this should be out of service, and too much of its pool is already. */
export interface HealthAlert {
  pool: string;
  node: string;
  gpu: number | null;
  reason: string;
}

export type NodeState = "ready" | "cordoned" | "draining" | "lost" | "unhealthy";

export interface ClusterNode {
  name: string;
  state: NodeState;
  gpu_type: string;
  gpu_memory_mib?: number;
  rack: string;
  labels: Record<string, string>;
  address: string;
  /** Who cordoned it, where that is known. */
  cordoned_by?: string;
  /** Since when, where that is known. */
  cordoned_s?: number | null;
  health?: HealthShown | null;
  gpus: Gpu[];
  /** null where CPUs are not counted; the jobs are those without GPUs */
  cpu?: { total: number | null; free: number | null; jobs: string[] };
}

export interface NodesAnswer {
  nodes: ClusterNode[];
  alerts?: HealthAlert[];
}

/** Whether a job has quota, in Kueue's words. */
export interface QuotaReserved {
  status: boolean;
  reason: string;
  message: string;
}

/** GPUs by flavor; `*` counts all of them together. */
export type ByFlavor = Record<string, number>;

/** Quota in one resource of one flavor, and what is made of it: GPUs, CPUs, bytes, pods. */
export interface QuotaCell {
  flavor: string;
  resource: string;
  nominal: number;
  borrowing_limit: number | null;
  lending_limit: number | null;
  /** The nominal quota, in a cohort with that of all below it. */
  total: number;
  used: number;
  reserved: number;
  growth: number;
  borrowed: number;
  lent: number;
}

export type QueueState = "active" | "held" | "draining" | "leaving" | "misconfigured" | "open" | "unknown";

export interface Queue {
  name: string;
  state: QueueState;
  message: string;
  quota: ByFlavor;
  cohort: string;
  weight: number;
  held: boolean;
  used: ByFlavor;
  borrowed: ByFlavor;
  lent: ByFlavor;
  running: number;
  pending: number;
  suspended: number;
  /** By resource: what those that wait need at least. */
  needs: Record<string, number>;
  /** Thousandths of what its cohort could lend, by weight; null for a borrower of weight 0. */
  share: number | null;
  strategy: string;
  stop_policy: string;
  cells: QuotaCell[];
  local_queues: { name: string; namespace: string; stop_policy: string; running: number; pending: number }[];
}

export interface Cohort {
  name: string;
  /** Empty for none. */
  parent: string;
  weight: number;
  share: number | null;
  pending: number;
  running: number;
  cells: QuotaCell[];
}

export interface QueueTree {
  queues: Queue[];
  cohorts: Cohort[];
  fair_sharing: boolean;
}

export interface WaitingJob {
  place: number;
  id: string;
  name: string;
  user: string;
  priority: number;
  submitted_s: number;
  /** That it needs at least. */
  gpus: number;
  reason: Reason | null;
  quota_reserved: QuotaReserved;
}

export interface HoldingJob {
  id: string;
  name: string;
  user: string;
  priority: number;
  submitted_s: number;
  gpus: number;
  reserved: number;
  flavors: Record<string, string>;
}

export interface QueueDetail extends Queue {
  waiting: WaitingJob[];
  holding: HoldingJob[];
}

export interface Cluster {
  version: string;
  policy: string;
  virtual: boolean;
  /** Where jobs, nodes and queues are changed, if not here. */
  read_only?: string;
  /** Whether the server looks ahead. */
  foresight?: boolean;
  gpus: { total: number; used: number; free: number; cordoned: number; unhealthy: number };
  jobs: Partial<Record<JobState, number>>;
  trouble: string;
  pid: number;
  started_s: number;
  now_s: number;
  /** The number of the last event. */
  seq: number;
  cycle: { count: number; last_ms: number; engine_cpu_s: number };
}

/** GPU-seconds of jobs; what they waited for is no part of the capacity. */
export interface Spent {
  used_gpu_s: number;
  unused_gpu_s: number;
  restarting_gpu_s: number;
  lost_gpu_s: number;
  waiting_gpu_s: number;
}

export interface QueueSpent extends Spent {
  queue: string;
}

export interface UserSpent extends Spent {
  /** Empty for jobs that have none. */
  user: string;
}

/** All GPU time: used, unused, restarting, lost, idle, fragmented and unavailable are the capacity. */
export interface Account extends Spent {
  capacity_gpu_s: number;
  idle_gpu_s: number;
  fragmented_gpu_s: number;
  unavailable_gpu_s: number;
}

export interface DayAccount extends Account {
  /** UTC: "2026-11-16" */
  day: string;
  queues: QueueSpent[];
  users: UserSpent[];
}

export interface Report {
  from_s: number;
  to_s: number;
  total: Account;
  queues: QueueSpent[];
  users: UserSpent[];
  days: DayAccount[];
  /** What is missing from it. */
  notes: string[];
}

export interface Session {
  user: string;
  role: Role;
}

export type Role = "viewer" | "user" | "admin";

export interface Policies {
  name: string;
  policies: { name: string; summary: string }[];
}

export interface Explanation {
  job: string;
  state: JobState;
  reason: Reason | null;
  /** How many of its queue are ahead of it; null when it does not wait. */
  ahead?: number | null;
  story: { time_s: number; sentence: string }[];
}

/** A change with which, and with nothing else, the next decision would start a job that waits. */
export interface SuggestedChange {
  code: string;
  sentence: string;
  gpus: number;
  stops: string[];
  shrinks: string[];
  within_s: number | null;
}

/** A moment that comes with a probability of a half by `p50_s`, of nine tenths by `p90_s`. */
export interface ExpectedTime {
  p50_s: number | null;
  p90_s: number | null;
}

export interface JobEta {
  id: string;
  start: ExpectedTime;
  finish: ExpectedTime;
  /** Why there is no answer; empty when there is. */
  why: string;
}

export interface EtaAnswer {
  now_s: number;
  assumes: string[];
  jobs: JobEta[];
}

export interface ProgressPoint {
  time_s: number | null;
  step: number | null;
  epoch: number | null;
  loss: number | null;
  samples_per_s: number | null;
  metrics?: Record<string, number> | null;
}

/** How busy the GPUs of a job were, 0…1, as measured up to a time. */
export interface UsePoint {
  time_s: number;
  busy: number;
  gpus: number;
}

/** Lines of a log in which a text stands. */
export interface LogSearch {
  matches: { line: number; text: string }[];
  /** How many there are; `matches` has the last ones when there are too many. */
  total: number;
  /** How many lines were looked at. */
  lines: number;
}

export interface Segment {
  from_s: number;
  to_s: number | null;
  gpus: number;
}

export interface Timeline {
  from_s: number;
  to_s: number;
  gpus: number;
  jobs: { id: string; name: string; segments: Segment[] }[];
}

export interface PlannedCommand {
  type: string;
  job: string;
  reason: string;
  sentence: string;
  gpus: number | null;
}

export interface InputProblem {
  message: string;
  file?: string | null;
  line?: number | null;
  column?: number | null;
  fix?: string | null;
}

export interface Problem {
  type?: string;
  title: string;
  status: number;
  detail?: string;
  problems?: InputProblem[];
}

export interface Submitted {
  job: Job;
  notes: string[];
}
