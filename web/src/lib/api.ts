// The one place that talks to the server. The session is a cookie, so requests need no token here.

import { EVENT_TYPES, parseEvents, type LiveEvent } from "./feed.ts";
import type {
  Cluster,
  ClusterNode,
  EtaAnswer,
  Explanation,
  Job,
  JobPage,
  LogSearch,
  NodesAnswer,
  Policies,
  Problem,
  ProgressPoint,
  QueueDetail,
  QueueTree,
  Report,
  Session,
  SuggestedChange,
  Submitted,
  Timeline,
  UsePoint,
} from "./types.ts";

export const BASE = "/api/v1";

/** What the server, or the way to it, has against a request. Status 0: there was no answer. */
export class ApiError extends Error {
  readonly status: number;
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail || problem.title);
    this.name = "ApiError";
    this.status = problem.status;
    this.problem = problem;
  }
}

type Listener = (error: ApiError | null) => void;
let listener: Listener = () => {};

/** Told of every outcome: null when the server answered, whatever it said. */
export function onOutcome(heard: Listener): void {
  listener = heard;
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const body = (await response.json()) as Partial<Problem> & { detail?: unknown };
    const detail = typeof body.detail === "string" ? body.detail : undefined;
    return { ...body, title: body.title ?? response.statusText, status: response.status, detail } as Problem;
  } catch {
    return { title: response.statusText || `Status ${response.status}`, status: response.status };
  }
}

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(BASE + path, { credentials: "same-origin", ...init });
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    const error = new ApiError({ title: "No answer from the server", status: 0 });
    listener(error);
    throw error;
  }
  if (!response.ok) {
    const error = new ApiError(await problemOf(response));
    listener(error);
    throw error;
  }
  listener(null);
  return response;
}

async function json<T>(path: string, init: RequestInit = {}): Promise<T> {
  return (await (await request(path, init)).json()) as T;
}

const send = <T>(method: string, path: string, body?: unknown): Promise<T> =>
  json<T>(path, {
    method,
    ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
  });

function query(values: Record<string, string | number | boolean | null | undefined>): string {
  const entries = Object.entries(values).filter((entry) => entry[1] != null && entry[1] !== "");
  return entries.length ? `?${new URLSearchParams(entries.map(([key, value]) => [key, String(value)]))}` : "";
}

const one = (id: string): string => `/jobs/${encodeURIComponent(id)}`;

export interface JobQuery {
  active?: boolean;
  user?: string;
  limit?: number;
  cursor?: string | null;
  order?: "newest";
}

export const session = (): Promise<Session> => json("/session");
export const signOut = (): Promise<Response> => request("/session", { method: "DELETE" });
export const cluster = (): Promise<Cluster> => json("/cluster");
export const nodes = (): Promise<NodesAnswer> => json("/nodes");
export const queues = (): Promise<QueueTree> => json("/queues");
export const queue = (name: string, limit: number): Promise<QueueDetail> => json(`/queues/${encodeURIComponent(name)}${query({ limit })}`);
export const eta = (): Promise<EtaAnswer> => json("/eta");
export const policies = (): Promise<Policies> => json("/policy");
export const jobs = (filter: JobQuery): Promise<JobPage> => json(`/jobs${query({ ...filter })}`);
export const job = (id: string): Promise<Job> => json(one(id));
export const explain = (id: string): Promise<Explanation> => json(`${one(id)}/explain`);
export const suggestions = async (id: string): Promise<SuggestedChange[]> =>
  (await json<{ suggestions: SuggestedChange[] }>(`${one(id)}/suggestions`)).suggestions;
export const progress = async (id: string): Promise<ProgressPoint[]> =>
  (await json<{ points: ProgressPoint[] }>(`${one(id)}/progress`)).points;
export const timeline = (since_s: number, id?: string): Promise<Timeline> => json(`/timeline${query({ since_s, job: id })}`);

export const cancel = (id: string): Promise<Job> => send("DELETE", one(id));
export const patch = (id: string, change: Record<string, unknown>): Promise<Job> => send("PATCH", one(id), change);
export const setPolicy = (name: string): Promise<Policies> => send("PUT", "/policy", { name });
export const nodeAction = (name: string, action: "cordon" | "uncordon" | "drain"): Promise<ClusterNode> =>
  send("POST", `/nodes/${encodeURIComponent(name)}/${action}`);

export const mended = (name: string, gpu: number | null): Promise<ClusterNode> =>
  send("POST", `/nodes/${encodeURIComponent(name)}/mended`, gpu == null ? {} : { gpu });

export const report = (from_s: number, to_s: number | null): Promise<Report> => json(`/report${query({ from_s, to_s })}`);
export const reportHref = (from_s: number, to_s: number | null, format: "json" | "html"): string =>
  `${BASE}/report${query({ from_s, to_s, format: format === "html" ? "html" : null })}`;

/** What happened after a number, without what comes too often to be read. */
export async function history(after: number): Promise<LiveEvent[]> {
  const types = EVENT_TYPES.filter((type) => !["JobProgressed", "JobCheckpointed", "TimePassed", "TransitionTimed", "GpusUsed"].includes(type));
  const response = await request(`/events${query({ after, follow: false, types: types.join(",") })}`);
  return parseEvents(await response.text());
}

/** null when the job gave no result */
export async function result(id: string): Promise<{ value: unknown } | null> {
  try {
    return await json<{ value: unknown }>(`${one(id)}/result`);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

export function submit(yaml: string, key: string, dryrun: boolean): Promise<Submitted> {
  return json(`/jobs${query({ dryrun: dryrun || null })}`, {
    method: "POST",
    body: yaml,
    headers: { "Content-Type": "application/yaml", ...(dryrun ? {} : { "Idempotency-Key": key }) },
  });
}

/** The same task once more, as a new job of the calling user. */
export const runAgain = (id: string, overrides: Record<string, unknown>, key: string): Promise<Submitted> =>
  json("/jobs", {
    method: "POST",
    body: JSON.stringify({ like: id, overrides }),
    headers: { "Content-Type": "application/json", "Idempotency-Key": key },
  });

/** The task file of a job, without the values of secrets. */
export const taskFile = async (id: string): Promise<string> => (await request(`${one(id)}/task`)).text();

export const gpuUse = async (id: string): Promise<UsePoint[]> => (await json<{ points: UsePoint[] }>(`${one(id)}/gpu-use`)).points;

export const logHref = (id: string, rank: number): string => `${BASE}${one(id)}/logs${query({ rank })}`;

export const followLog = (id: string, rank: number, tail: number, follow: boolean, signal: AbortSignal): Promise<Response> =>
  request(`${one(id)}/logs${query({ rank, tail, follow: follow || null })}`, { signal });

export const searchLog = (id: string, rank: number, text: string, signal: AbortSignal): Promise<LogSearch> =>
  json(`${one(id)}/logs/search${query({ rank, text })}`, { signal });

/** randomUUID exists on secure origins only; a server on another machine's address is none. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
