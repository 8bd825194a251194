// What happens, as lines: decisions of the scheduler and what came of them.

import type { PlannedCommand } from "./types.ts";

export type FeedKind = "decision" | "job" | "cluster" | "health" | "user";

export interface FeedLine {
  key: string;
  seq: number;
  time_s: number;
  kind: FeedKind;
  /** An icon's name and the word that stands for it. */
  icon: string;
  verb: string;
  job: string | null;
  text: string;
  reason: string;
}

/** Events that the stream has by name; an EventSource has to be told each of them. */
export const EVENT_TYPES = [
  "JobSubmitted",
  "JobStarted",
  "JobProgressed",
  "JobCheckpointed",
  "JobInterrupted",
  "JobEnded",
  "JobChanged",
  "JobWished",
  "TransitionTimed",
  "PolicySet",
  "NodeAdded",
  "NodeLost",
  "NodeReturned",
  "NodeCordoned",
  "NodeUncordoned",
  "GpuFailed",
  "GpuRepaired",
  "GpusUsed",
  "HealthChanged",
  "QuotaSet",
  "TimePassed",
  "Planned",
] as const;

export type EventType = (typeof EVENT_TYPES)[number];

export interface LiveEvent {
  seq: number;
  type: EventType;
  time_s: number;
  data: Record<string, unknown>;
}

const text = (value: unknown): string => (typeof value === "string" ? value : typeof value === "number" ? String(value) : "");

/** Journals name a job by its id, or carry the whole of it. */
export function jobOf(data: Record<string, unknown>): { id: string; name: string } | null {
  const job = data["job"];
  if (typeof job === "string" || typeof job === "number") return { id: String(job), name: "" };
  if (job && typeof job === "object") {
    const whole = job as Record<string, unknown>;
    return { id: text(whole["id"]), name: text(whole["name"]) };
  }
  return null;
}

const COMMANDS: Record<string, [icon: string, verb: string]> = {
  start: ["play", "Start"],
  resize: ["resize", "Resize"],
  migrate: ["move", "Migrate"],
  preempt: ["pause", "Preempt"],
  stop: ["stop", "Stop"],
};

const CHANGES: Record<string, string> = { GREW: "grow", SHRANK: "shrink", CUT_TO_MAX: "shrink" };

function commandLine(event: LiveEvent, command: PlannedCommand, at: number): FeedLine {
  const [icon, verb] = COMMANDS[command.type.toLowerCase()] ?? ["dot", command.type];
  return {
    key: `${event.seq}.${at}`,
    seq: event.seq,
    time_s: event.time_s,
    kind: "decision",
    icon: CHANGES[command.reason] ?? icon,
    verb,
    job: command.job,
    text: command.sentence,
    reason: command.reason,
  };
}

const ENDS: Record<string, [icon: string, sentence: string]> = {
  SUCCEEDED: ["check", "succeeded"],
  FAILED: ["cross", "failed"],
  FAILED_SETUP: ["cross", "failed in its setup"],
  CANCELLED: ["ban", "was cancelled"],
};

function jobText(event: LiveEvent): [icon: string, sentence: string] | null {
  const { data } = event;
  const detail = text(data["detail"]);
  switch (event.type) {
    case "JobSubmitted":
      return ["plus", "was submitted"];
    case "JobStarted":
      return ["play", "runs"];
    case "JobInterrupted":
      return ["pause", detail ? `was interrupted: ${detail}` : "was interrupted and waits again"];
    case "JobEnded": {
      const [icon, sentence] = ENDS[text(data["state"]).toUpperCase()] ?? ["dot", "ended"];
      return [icon, detail ? `${sentence}: ${detail}` : sentence];
    }
    case "JobChanged":
      return ["edit", "was changed by its user"];
    case "JobWished":
      return ["edit", { park: "is to be parked", run: "is to run", cancel: "is to be cancelled" }[text(data["wish"]).toLowerCase()] ?? "is to leave its GPUs"];
    default:
      return null;
  }
}

const HEALTH: Record<string, [icon: string, verb: string]> = {
  healthy: ["check", "is well again"],
  suspect: ["warn", "is suspect"],
  ill: ["warn", "is ill"],
  "burn-in": ["gear", "is being tested"],
  probation: ["clock", "is on probation"],
  alert: ["warn", "is ill and stays in service"],
};

function healthText(data: Record<string, unknown>, node: string): [icon: string, sentence: string] {
  const gpu = data["gpu"];
  const [icon, verb] = HEALTH[text(data["state"])] ?? ["dot", `is ${text(data["state"])}`];
  const why = text(data["reason"]);
  return [icon, `${gpu == null ? `Node ${node}` : `GPU ${text(gpu)} of ${node}`} ${verb}${why ? `: ${why}` : ""}`];
}

function clusterText(event: LiveEvent): [icon: string, sentence: string] | null {
  const { data } = event;
  const raw = data["node"];
  const node = typeof raw === "object" && raw ? text((raw as Record<string, unknown>)["name"]) : text(raw);
  switch (event.type) {
    case "PolicySet":
      return ["policy", `The policy is now ${text(data["policy"])}`];
    case "NodeAdded":
      return ["node", `Node ${node} joined`];
    case "NodeLost":
      return ["warn", `Node ${node} was lost`];
    case "NodeReturned":
      return ["node", `Node ${node} is back`];
    case "NodeCordoned":
      return ["ban", `Node ${node} was cordoned`];
    case "NodeUncordoned":
      return ["node", `Node ${node} takes work again`];
    case "GpuFailed":
      return ["warn", `GPU ${text(data["gpu"])} of ${node} failed`];
    case "GpuRepaired":
      return ["node", `GPU ${text(data["gpu"])} of ${node} works again`];
    case "HealthChanged":
      return healthText(data, node);
    case "QuotaSet":
      return ["queue", "Quota was changed"];
    default:
      return null;
  }
}

/** What is out of service, and what is back. */
const OF_HEALTH: ReadonlySet<EventType> = new Set(["NodeLost", "NodeReturned", "NodeCordoned", "NodeUncordoned", "GpuFailed", "GpuRepaired", "HealthChanged"] as const);

/** The lines of one event: none for those that only matter to machines. */
export function feedLines(event: LiveEvent): FeedLine[] {
  if (event.type === "Planned") {
    const commands = (event.data["commands"] ?? []) as PlannedCommand[];
    return commands.map((command, at) => commandLine(event, command, at));
  }
  const base = { key: String(event.seq), seq: event.seq, time_s: event.time_s, verb: "", reason: "" };
  const ofJob = jobText(event);
  if (ofJob) {
    const kind = event.type === "JobWished" || event.type === "JobChanged" || event.type === "JobSubmitted" ? "user" : "job";
    return [{ ...base, kind, icon: ofJob[0], text: ofJob[1], job: jobOf(event.data)?.id ?? null }];
  }
  const ofCluster = clusterText(event);
  return ofCluster ? [{ ...base, kind: OF_HEALTH.has(event.type) ? "health" : "cluster", icon: ofCluster[0], text: ofCluster[1], job: null }] : [];
}

/** What a finite stream of events says, as it comes over the wire. */
export function parseEvents(wire: string): LiveEvent[] {
  const known: ReadonlySet<string> = new Set(EVENT_TYPES);
  const events: LiveEvent[] = [];
  for (const frame of wire.split(/\r?\n\r?\n/)) {
    const fields = new Map(frame.split(/\r?\n/).map((line): [string, string] => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trimStart()]));
    const type = fields.get("event") ?? "";
    if (!known.has(type)) continue;
    const data = JSON.parse(fields.get("data") ?? "{}") as Record<string, unknown>;
    events.push({ seq: Number(fields.get("id")), type: type as EventType, time_s: Number(data["time_s"]), data });
  }
  return events;
}

/** Newest first; at most `keep`. Lines that are there already (after a reconnection) are not doubled. */
export function merge(lines: readonly FeedLine[], fresh: readonly FeedLine[], keep = 400): FeedLine[] {
  const known = new Set(lines.map((line) => line.key));
  const added: FeedLine[] = [];
  for (const line of fresh) {
    // The past and the stream overlap: both may bring the same event, even in one batch.
    if (known.has(line.key)) continue;
    known.add(line.key);
    added.push(line);
  }
  // What is older than the newest that we have (the past, read after the stream began) finds its place.
  return [...added.reverse(), ...lines].sort((one, other) => other.seq - one.seq).slice(0, keep);
}
