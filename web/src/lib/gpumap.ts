// What each tile of the GPU map shows, and what the map as a whole says.

import type { ClusterNode, Gpu, NodeState } from "./types.ts";

export type TileKind = "busy" | "shared" | "free" | "fragmented" | "ill" | "closed";

/** Free GPUs beside busy ones are counted apart: a job that wants a whole node cannot use them. */
export function tileKind(gpu: Gpu, node: ClusterNode): TileKind {
  if (!gpu.healthy || node.state === "lost" || node.state === "unhealthy") return "ill";
  if (gpu.jobs.length > 1 || gpu.jobs.some((job) => job.share != null)) return "shared";
  if (gpu.jobs.length === 1) return "busy";
  if (node.state !== "ready") return "closed";
  return node.gpus.some((other) => other.jobs.length > 0) ? "fragmented" : "free";
}

export const KIND_WORDS: Record<TileKind, string> = {
  busy: "in use",
  shared: "shared",
  free: "free, whole node",
  fragmented: "free, node in use",
  ill: "unhealthy",
  closed: "closed to new work",
};

export function countKinds(nodes: readonly ClusterNode[]): Record<TileKind, number> {
  const counts: Record<TileKind, number> = { busy: 0, shared: 0, free: 0, fragmented: 0, ill: 0, closed: 0 };
  for (const node of nodes) for (const gpu of node.gpus) counts[tileKind(gpu, node)]++;
  return counts;
}

export function usedOn(node: ClusterNode): number {
  return node.gpus.filter((gpu) => gpu.jobs.length > 0).length;
}

/** The mean of what is known; null when nothing is. */
export function meanUtilisation(nodes: readonly ClusterNode[]): number | null {
  const known = nodes.flatMap((node) => node.gpus.map((gpu) => gpu.utilisation)).filter((u) => u != null);
  return known.length ? known.reduce((sum, u) => sum + u, 0) / known.length : null;
}

/** Large clusters get small tiles, small ones have room for names. */
export function density(gpus: number): "large" | "roomy" | "compact" | "dense" {
  return gpus <= 24 ? "large" : gpus <= 64 ? "roomy" : gpus <= 320 ? "compact" : "dense";
}

export interface Rack {
  name: string;
  nodes: ClusterNode[];
}

export function byRack(nodes: readonly ClusterNode[]): Rack[] {
  const racks = new Map<string, ClusterNode[]>();
  for (const node of nodes) {
    const rack = racks.get(node.rack) ?? [];
    rack.push(node);
    racks.set(node.rack, rack);
  }
  return [...racks].map(([name, members]) => ({ name, nodes: members }));
}

export const NODE_WORDS: Record<NodeState, string> = {
  ready: "Ready",
  cordoned: "Cordoned",
  draining: "Draining",
  lost: "Lost",
  unhealthy: "Unhealthy",
};
