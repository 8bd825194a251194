// What would help a job that does not have what it asked for: from its reason, its evidence and what is free now.

import { plural } from "./format.ts";
import { perNode } from "./job.ts";
import type { Cluster, Job } from "./types.ts";

export interface Advice {
  text: string;
  /** What the page can do about it, for users who may. */
  action?: { kind: "resize"; min_nodes: number; label: string } | { kind: "resume"; label: string } | { kind: "link"; href: string; label: string };
}

const evidence = (job: Job, key: string): number | null => {
  const value = job.reason?.evidence?.[key];
  return typeof value === "number" ? value : null;
};

function smaller(job: Job, free: number): Advice[] {
  const nodes = Math.floor(free / perNode(job));
  const least = Math.ceil(job.gpus.min / perNode(job));
  if (nodes < 1 || nodes >= least) return [];
  return [
    {
      text: `It would start now with ${plural(nodes * perNode(job), "GPU")}, if it may run that small.`,
      action: { kind: "resize", min_nodes: nodes, label: `Allow ${nodes === 1 ? "1 node" : `${nodes} nodes`} at least` },
    },
  ];
}

export function advise(job: Job, cluster: Cluster | null): Advice[] {
  const free = cluster?.gpus.free ?? evidence(job, "free") ?? 0;
  switch (job.reason?.code) {
    case "WAITING_FOR_GPUS":
      return [
        ...smaller(job, free),
        { text: "Jobs that go first give their GPUs back when they end; a higher priority moves it forward." },
      ];
    case "HELD_BACK":
      return [
        {
          text: "GPUs are free, and the policy keeps them for other jobs. Another policy may start it at once.",
          action: { kind: "link", href: "#/policy", label: "See the policies" },
        },
      ];
    case "EXCEEDS_CLUSTER":
      return [
        {
          text: `It can never run at ${plural(job.gpus.min, "GPU")} here: the cluster has ${plural(evidence(job, "capacity") ?? cluster?.gpus.total ?? 0, "GPU")} for it. Lower its smallest size, or add nodes.`,
        },
      ];
    case "FRAGMENTED":
    case "TOPOLOGY_UNMET":
      return [
        {
          text: "Enough GPUs are free, but scattered. A weaker gpu.topology in the task (any, prefer-node) accepts them as they are.",
          action: { kind: "link", href: "#/nodes", label: "See where they are" },
        },
        ...smaller(job, evidence(job, "best") ?? 0),
      ];
    case "EXCEEDS_QUOTA":
    case "NO_MATCHING_FLAVOR":
      return [
        {
          text: `Queue ${job.queue} can never give it that. Another queue may have such quota, or a smaller size fits.`,
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
        ...smaller(job, evidence(job, "most") ?? 0),
      ];
    case "EXCEEDS_REST":
    case "REST_EXHAUSTED":
      return [
        {
          text: "It names no queue, and queues have quota for nearly all GPUs. Move it to a queue with quota, or an admin gives queue default some.",
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
        ...smaller(job, evidence(job, job.reason?.code === "EXCEEDS_REST" ? "most" : "quota_left") ?? 0),
      ];
    case "BEHIND_ANOTHER":
    case "KEPT_FOR_ANOTHER":
      return [
        {
          text: "Jobs of its queue that came first, or matter more, start before it; a higher priority moves it forward.",
          action: { kind: "link", href: "#/queues", label: "See who is ahead" },
        },
      ];
    case "QUOTA_SHORT_OF_CPUS":
    case "QUOTA_SHORT_OF_MEMORY":
    case "QUOTA_SHORT_OF_PODS":
    case "QUOTA_EXHAUSTED":
    case "QUOTA_REACHED":
      return [
        ...smaller(job, evidence(job, "quota_left") ?? 0),
        {
          text: "Its queue's quota is used up. Another queue may have room, or an admin may raise the quota.",
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
      ];
    case "QUEUE_MISSING":
      return [
        {
          text: `No queue ${job.queue} is set up for it: an admin makes one, or the job moves to another queue.`,
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
      ];
    case "QUEUE_LEAVES":
      return [
        {
          text: `Queue ${job.queue} is being removed and starts nothing more: the job has to move to another queue.`,
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
      ];
    case "QUEUE_HELD":
      return [
        {
          text: `Queue ${job.queue} is held: an admin has to let it go, or the job moves to another queue.`,
          action: { kind: "link", href: "#/queues", label: "See the queues" },
        },
      ];
    case "NO_ACCEPTED_TYPE":
    case "NO_MATCHING_NODE":
      return [
        {
          text: "No node has what resources.accelerators or resources.labels ask for. Accept more types, or drop the labels.",
          action: { kind: "link", href: "#/nodes", label: "See what nodes have" },
        },
      ];
    case "SHORT_OF_CPU_OR_MEMORY":
      return [{ text: "Ask for fewer CPUs or less memory per node, or wait until a neighbour ends." }];
    case "PARKED":
      return [{ text: "It stays parked until a user starts it.", action: { kind: "resume", label: "Start it again" } }];
    case "RESTART_BACKOFF":
      return [{ text: "It failed and will be tried again. The end of its log says why it failed." }];
    case "SHARES_WITH_OTHERS":
      return [{ text: "It grows when other jobs end. It asked for no more than it can use, so nothing needs to be done." }];
    case "KEEPS_SIZE":
      return [
        {
          text: "It may be resized as soon as its script saves: call batuta.sdk.checkpoint_requested and checkpointed in the training loop. If a restart loses nothing, say so in the task: elastic.restartable: true.",
        },
      ];
    case "CHANGE_DOES_NOT_PAY":
      return [{ text: "A change now would cost more than it gains. Faster checkpoints make changes cheaper." }];
    default:
      return [];
  }
}
