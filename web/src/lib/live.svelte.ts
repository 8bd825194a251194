// The stream of events: connected, or trying again. Components subscribe; lists are fetched again when it matters.

import { BASE, history } from "./api.ts";
import { EVENT_TYPES, feedLines, jobOf, merge, type EventType, type FeedLine, type LiveEvent } from "./feed.ts";

export type Connection = "connecting" | "live" | "broken" | "signed-out";
type Handler = (event: LiveEvent | null) => void;

const RETRY_S = [1, 2, 4, 8, 15];
const SILENCE_S = 40;
/** So many events before now are looked at for the list of decisions: as many as the server has at hand. */
const HISTORY = 4000;

class Live {
  connection = $state<Connection>("connecting");
  /** When the connection broke; null while it holds. */
  broken_s = $state<number | null>(null);
  feed = $state.raw<FeedLine[]>([]);
  /** The last number heard, so that nothing is missed across reconnections. */
  seq = $state(0);
  /** Names of jobs, as far as events told them. */
  names = $state.raw<ReadonlyMap<string, string>>(new Map());

  private source: EventSource | null = null;
  private handlers = new Set<Handler>();
  private failures = 0;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private fresh = { lines: [] as FeedLine[], names: new Map<string, string>() };
  private flushing: ReturnType<typeof setTimeout> | undefined;
  private heard = 0;

  /** From the event of this number on; what led to it is read for the list of decisions. */
  start(seq: number): void {
    if (this.source) return;
    this.seq = seq;
    this.open();
    void this.remember(Math.max(0, seq - HISTORY));
    setInterval(() => this.checkSilence(), 5000);
    addEventListener("online", () => this.reopen());
    addEventListener("pagehide", () => this.source?.close());
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.reopen();
    });
  }

  /** `null` stands for "everything may have changed". Returns how to stop. */
  subscribe(handler: Handler): () => void {
    this.handlers.add(handler);
    return () => this.handlers.delete(handler);
  }

  signedOut(): void {
    this.connection = "signed-out";
    this.source?.close();
    this.source = null;
    clearTimeout(this.retry);
  }

  reopen(): void {
    clearTimeout(this.retry);
    this.source?.close();
    this.open();
  }

  private open(): void {
    const source = new EventSource(`${BASE}/events?after=${this.seq}`);
    this.source = source;
    source.onopen = () => {
      const wasBroken = this.connection === "broken";
      this.connection = "live";
      this.broken_s = null;
      this.failures = 0;
      this.heard = performance.now();
      if (wasBroken) this.tell(null);
    };
    source.onerror = () => {
      if (this.source === source) this.failed(source);
    };
    for (const type of EVENT_TYPES) source.addEventListener(type, (message) => this.receive(type, message));
    source.addEventListener("reset", (message) => {
      // Numbers were pruned, or it is another journal: what we counted by is worth nothing any more.
      this.seq = Number(message.lastEventId) || 0;
      this.tell(null);
    });
  }

  private failed(source: EventSource): void {
    if (this.connection !== "signed-out") this.connection = "broken";
    this.broken_s ??= Date.now() / 1000;
    // One request has to find out whether the server is away or has signed us out.
    this.tell(null);
    if (source.readyState !== EventSource.CLOSED) return; // The browser tries again by itself.
    const wait_s = RETRY_S[Math.min(this.failures++, RETRY_S.length - 1)]!;
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), wait_s * 1000);
  }

  private async remember(after: number): Promise<void> {
    try {
      for (const event of await history(after)) this.take(event);
      this.flush();
    } catch {
      // The page works without its past; whatever is wrong is reported by the requests that need an answer.
    }
  }

  private receive(type: EventType, message: MessageEvent<string>): void {
    this.heard = performance.now();
    const seq = Number(message.lastEventId) || this.seq;
    let data: Record<string, unknown>;
    try {
      data = JSON.parse(message.data) as Record<string, unknown>;
    } catch {
      return;
    }
    this.seq = Math.max(this.seq, seq);
    const time_s = typeof data["time_s"] === "number" ? data["time_s"] : Date.now() / 1000;
    const event: LiveEvent = { seq, type, time_s, data };
    this.take(event);
    // A busy cluster sends hundreds a second: the page is told ten times a second at most.
    this.flushing ??= setTimeout(() => this.flush(), 100);
    this.tell(event);
  }

  private take(event: LiveEvent): void {
    const job = event.type === "JobSubmitted" ? jobOf(event.data) : null;
    if (job?.name) this.fresh.names.set(job.id, job.name);
    this.fresh.lines.push(...feedLines(event));
  }

  private flush(): void {
    this.flushing = undefined;
    const { lines, names } = this.fresh;
    this.fresh = { lines: [], names: new Map() };
    if (lines.length) this.feed = merge(this.feed, lines);
    if (names.size) this.names = new Map([...this.names, ...names]);
  }

  private tell(event: LiveEvent | null): void {
    for (const handler of this.handlers) handler(event);
  }

  /** Events come with each progress report; a long silence while jobs run is checked by asking. */
  private checkSilence(): void {
    if (this.connection === "live" && performance.now() - this.heard > SILENCE_S * 1000 && !document.hidden) {
      this.heard = performance.now();
      this.tell(null);
    }
    if (this.connection === "broken" && !document.hidden) this.tell(null);
  }
}

export const live = new Live();
