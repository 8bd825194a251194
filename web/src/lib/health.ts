// What is not well, and what people keep out of service: a row for each, the worst first.

import { plural } from "./format.ts";
import type { ClusterNode, Gpu, HealthShown } from "./types.ts";

export type RowState = "lost" | "ill" | "burn-in" | "probation" | "suspect" | "cordoned" | "draining" | "healthy";

export interface HealthRow {
  key: string;
  node: string;
  /** null: the node as a whole */
  gpu: number | null;
  state: RowState;
  reason: string;
  since_s: number | null;
  /** `health`, a human's name, or empty where it is not known. */
  who: string;
  remedy: string;
  held: boolean;
  until_s: number | null;
  flaps: number;
  incidents: number;
}

const OUT: readonly RowState[] = ["lost", "ill", "burn-in", "probation"];
const ORDER: readonly RowState[] = ["lost", "ill", "burn-in", "probation", "suspect", "cordoned", "draining", "healthy"];

export const STATES: Record<RowState, { word: string; icon: string; tone: "bad" | "wait" | "busy" | "good" | "quiet"; meaning: string }> = {
  lost: { word: "Lost", icon: "warn", tone: "bad", meaning: "it does not answer" },
  ill: { word: "Unhealthy", icon: "warn", tone: "bad", meaning: "out of service until it is mended" },
  "burn-in": { word: "Burn-in", icon: "gear", tone: "busy", meaning: "being tested before it returns" },
  probation: { word: "Probation", icon: "clock", tone: "wait", meaning: "passed its test, and is watched before it returns" },
  suspect: { word: "Suspect", icon: "help", tone: "wait", meaning: "in service; more of the same takes it out" },
  cordoned: { word: "Cordoned", icon: "ban", tone: "quiet", meaning: "nothing new starts there" },
  draining: { word: "Draining", icon: "ban", tone: "quiet", meaning: "nothing new starts there, and what runs leaves" },
  healthy: { word: "Well", icon: "check", tone: "good", meaning: "back in service" },
};

export function healthRows(nodes: readonly ClusterNode[]): HealthRow[] {
  return nodes
    .flatMap((node) => [...ofNode(node), ...node.gpus.flatMap((gpu) => ofGpu(node, gpu))])
    .sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.since_s ?? 0) - (a.since_s ?? 0) || (a.key < b.key ? -1 : 1));
}

function ofNode(node: ClusterNode): HealthRow[] {
  const rows: HealthRow[] = [];
  if (node.state === "lost") rows.push({ ...blank(node, null), key: `${node.name} lost`, state: "lost", reason: "It does not answer." });
  if (node.state === "cordoned" || node.state === "draining") {
    rows.push({ ...blank(node, null), key: `${node.name} cordon`, state: node.state, reason: STATES[node.state].meaning, who: node.cordoned_by ?? "", since_s: node.cordoned_s ?? null });
  }
  return node.health ? [...rows, { ...blank(node, null), ...known(node.health) }] : rows;
}

function ofGpu(node: ClusterNode, gpu: Gpu): HealthRow[] {
  if (gpu.health) return [{ ...blank(node, gpu.index), ...known(gpu.health) }];
  // All GPUs of a node that is out are out with it: the node's own row says why.
  const isOut = node.state === "lost" || (node.health != null && OUT.includes(node.health.state) && !node.health.held);
  return gpu.healthy || isOut ? [] : [{ ...blank(node, gpu.index), state: "ill", reason: "It is out of service." }];
}

function blank(node: ClusterNode, gpu: number | null): HealthRow {
  const key = gpu == null ? node.name : `${node.name} ${gpu}`;
  return { key, node: node.name, gpu, state: "healthy", reason: "", since_s: null, who: "", remedy: "", held: false, until_s: null, flaps: 0, incidents: 0 };
}

function known({ state, reason, since_s, who, remedy, held, until_s, flaps, incidents }: HealthShown): Partial<HealthRow> {
  return { state, reason, since_s, who, remedy, held, until_s, flaps, incidents };
}

export const targetName = (row: { node: string; gpu: number | null }): string => (row.gpu == null ? row.node : `${row.node}, GPU ${row.gpu}`);

/** A human's cordon, which health never undoes. */
export const isHuman = (row: HealthRow): boolean => (row.state === "cordoned" || row.state === "draining") && row.who !== "health";

/** Whether an administrator may mark it as repaired. */
export const isMendable = (row: HealthRow): boolean => row.state === "ill" && row.who !== "";

/** "2 out of service, 1 suspect" */
export function summary(rows: readonly HealthRow[]): string {
  const count = (...states: RowState[]): number => rows.filter((row) => states.includes(row.state) && !row.held).length;
  const told: [number, string][] = [
    [count(...OUT), "out of service"],
    [rows.filter((row) => row.held).length, "ill and in service"],
    [count("suspect"), "suspect"],
    [count("cordoned", "draining"), "cordoned"],
  ];
  return told
    .filter(([n]) => n > 0)
    .map(([n, word]) => `${n} ${word}`)
    .join(", ");
}

/** "4 nodes with 32 GPUs" */
export function inventory(nodes: readonly ClusterNode[]): string {
  const gpus = nodes.reduce((sum, node) => sum + node.gpus.length, 0);
  return `${plural(nodes.length, "node")} with ${plural(gpus, "GPU")}`;
}
