// Queues in their cohorts, and what the bars of their quota show.

import { number } from "./format.ts";
import type { Cohort, Queue, QueueTree, QuotaCell } from "./types.ts";

export const ALL_GPUS = "batuta.dev/gpus";
/** So many stand for all there are, where quota has to name a number. */
const MOST_GPUS = 10_000_000;

/** A cohort with what is in it, or a queue. */
export type Branch = { kind: "cohort"; cohort: Cohort; inside: Branch[] } | { kind: "queue"; queue: Queue };

/** Jobs may name a queue that leads nowhere and is called as one that is there. */
export function branchKey(branch: Branch): string {
  return branch.kind === "cohort" ? `cohort ${branch.cohort.name}` : `queue ${branch.queue.name} ${branch.queue.state === "unknown"}`;
}

/** The roots: cohorts that are in none, then queues that are in none. Each thing is there exactly once. */
export function branches(tree: QueueTree): Branch[] {
  const known = new Set(tree.cohorts.map((cohort) => cohort.name));
  const within = (name: string): Branch[] => [
    ...tree.cohorts.filter((cohort) => cohort.parent === name).map((cohort): Branch => ({ kind: "cohort", cohort, inside: within(cohort.name) })),
    ...tree.queues.filter((queue) => queue.cohort === name).map((queue): Branch => ({ kind: "queue", queue })),
  ];
  return [
    ...tree.cohorts.filter((cohort) => !known.has(cohort.parent)).map((cohort): Branch => ({ kind: "cohort", cohort, inside: within(cohort.name) })),
    ...tree.queues.filter((queue) => !known.has(queue.cohort)).map((queue): Branch => ({ kind: "queue", queue })),
  ];
}

export type PartKind = "own" | "growth" | "borrowed" | "idle" | "lent" | "pending";

export interface Part {
  kind: PartKind;
  amount: number;
  /** 0…1 of the bar */
  x: number;
  width: number;
}

export interface QuotaBar {
  key: string;
  label: string;
  parts: Part[];
  /** 0…1: where its own quota ends; null when that is the end of the bar */
  limit: number | null;
  used: string;
  /** "of 8", or that there is no limit */
  total: string;
  /** "2 borrowed", "3 waited for"; empty parts are left out */
  notes: { kind: PartKind; text: string }[];
  /** All of it in one sentence, for screen readers. */
  sentence: string;
}

/** What waits is drawn in the bar of its resource if there is only one; up to as much again as there is. */
export function quotaBars(owner: { cells: QuotaCell[]; needs?: Record<string, number> }): QuotaBar[] {
  return owner.cells.map((cell) => {
    const alone = owner.cells.filter((one) => one.resource === cell.resource).length === 1;
    return quotaBar(cell, alone ? (owner.needs?.[cell.resource] ?? 0) : 0);
  });
}

function quotaBar(cell: QuotaCell, needed: number): QuotaBar {
  const within = Math.max(0, cell.used - cell.borrowed);
  // Minimums take its own quota first, so what is borrowed is growth as far as there is some.
  const minimums = Math.min(cell.reserved, within);
  const idle = Math.max(0, cell.total - within - cell.lent);
  const whole = within + cell.borrowed + idle + cell.lent;
  const amounts: [PartKind, number][] = [
    ["own", minimums],
    ["growth", within - minimums],
    ["borrowed", cell.borrowed],
    ["idle", idle],
    ["lent", cell.lent],
    ["pending", Math.min(needed, Math.max(whole, 1))],
  ];
  const length = amounts.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  let x = 0;
  const parts: Part[] = [];
  for (const [kind, amount] of amounts) {
    if (amount > 0) parts.push({ kind, amount, x, width: amount / length });
    x += amount / length;
  }
  const show = (amount: number): string => showAmount(cell.resource, amount);
  const limit = (cell.borrowed > 0 ? within : whole) / length;
  const notes = [
    { kind: "growth" as const, amount: cell.growth, word: "above minimums" },
    { kind: "borrowed" as const, amount: cell.borrowed, word: "borrowed" },
    { kind: "lent" as const, amount: cell.lent, word: "lent" },
    { kind: "pending" as const, amount: needed, word: "waited for" },
  ].filter((note) => note.amount > 0);
  const told = notes.map((note) => ({ kind: note.kind, text: `${show(note.amount)} ${note.word}` }));
  const label = cellName(cell.flavor, cell.resource);
  const total = cell.total >= MOST_GPUS && !isBytes(cell.resource) ? "no limit" : `of ${show(cell.total)}`;
  return {
    key: `${cell.flavor} ${cell.resource}`,
    label,
    parts,
    limit: limit > 0 && limit < 0.999 ? limit : null,
    used: show(cell.used),
    total,
    notes: told,
    sentence: [`${label}: ${show(cell.used)} used${total.startsWith("of") ? "" : ","} ${total}`, ...told.map((note) => note.text)].join(", "),
  };
}

const UNITS: [number, string][] = [
  [2 ** 50, "Pi"],
  [2 ** 40, "Ti"],
  [2 ** 30, "Gi"],
  [2 ** 20, "Mi"],
  [2 ** 10, "Ki"],
];

const isBytes = (resource: string): boolean => resource === "memory" || resource === "ephemeral-storage" || resource.startsWith("hugepages-");

/** "8", "2.5", "512Gi" */
export function showAmount(resource: string, amount: number): string {
  if (isBytes(resource)) {
    const unit = UNITS.find(([size]) => amount >= size);
    if (unit) return `${number(amount / unit[0])}${unit[1]}`;
  }
  return number(amount);
}

/** "GPU", "memory" */
export function resourceName(resource: string): string {
  if (resource === ALL_GPUS) return "all GPUs";
  const last = resource.slice(resource.lastIndexOf("/") + 1);
  return last === "gpu" ? "GPUs" : last === "cpu" ? "CPUs" : last;
}

/** "h100 GPUs"; quota that all GPUs count in has no flavor to speak of */
export function cellName(flavor: string, resource: string): string {
  return resource === ALL_GPUS ? "All GPUs" : `${flavor} ${resourceName(resource)}`;
}

/** What those that wait need of resources that have several flavors, which no single bar can show. */
export function needsText(queue: Queue): string {
  return Object.entries(queue.needs)
    .filter(([resource]) => queue.cells.filter((cell) => cell.resource === resource).length > 1)
    .map(([resource, amount]) => `${showAmount(resource, amount)} ${amount === 1 ? resourceName(resource).replace(/s$/, "") : resourceName(resource)}`)
    .join(", ");
}
