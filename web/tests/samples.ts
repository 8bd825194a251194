import type { ClusterNode, Gpu, Job } from "../src/lib/types.ts";

export function job(id: string, change: Partial<Job> = {}): Job {
  return {
    id,
    name: `job-${id}`,
    user: "ana",
    queue: "default",
    kind: "script",
    priority: 0,
    state: "RUNNING",
    wish: "run",
    gpus: { now: 2, wanted: 4, min: 1, max: 8, per_node: 1, type: "virtual" },
    placement: [],
    progress: null,
    eta_s: null,
    submitted_s: 1000,
    started_s: 1001,
    ended_s: null,
    duration_s: null,
    waited_s: 1,
    restarts: 0,
    exit_code: null,
    detail: "",
    reason: null,
    ...change,
  };
}

export function gpu(index: number, ...jobs: string[]): Gpu {
  return { index, healthy: true, jobs: jobs.map((id) => ({ id, share: null })), utilisation: null };
}

export function node(name: string, gpus: Gpu[], state: ClusterNode["state"] = "ready"): ClusterNode {
  return { name, state, gpu_type: "virtual", rack: "", labels: {}, address: "", gpus };
}
