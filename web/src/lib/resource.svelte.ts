// Something fetched, and fetched again when an event says that it changed: soon, but never faster than it is cheap.

import { untrack } from "svelte";
import { ApiError } from "./api.ts";
import { live } from "./live.svelte.ts";
import type { EventType, LiveEvent } from "./feed.ts";

const SOON_MS = 150;
const AT_LEAST_MS = 700;
const AT_MOST_MS = 10_000;
/** Fetching takes at most this share of the time. */
const SHARE = 8;

export interface Options {
  /** Which events matter; all that are not listed in `seldom` when absent. */
  on?: readonly EventType[];
  /** Events that matter little (progress reports): waited for longer. */
  seldom?: readonly EventType[];
  /** Of those, only the ones that this accepts. */
  only?: (event: LiveEvent) => boolean;
  /** Never sooner after the last answer than this. */
  rest_ms?: number;
}

export class Resource<T> {
  value = $state.raw<T | null>(null);
  error = $state.raw<ApiError | null>(null);
  /** True until the first answer, whatever it was. */
  waiting = $state(true);

  private readonly fetcher: () => Promise<T>;
  private readonly options: Options;
  private users = 0;
  private unsubscribe: (() => void) | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private due = Infinity;
  private running = false;
  private again = false;
  private ended = 0;
  private cost = 0;

  constructor(fetcher: () => Promise<T>, options: Options = {}) {
    this.fetcher = fetcher;
    this.options = options;
  }

  /** Kept fresh as long as a component uses it: `$effect(() => resource.use())`. */
  use(): () => void {
    if (this.users++ === 0) {
      this.unsubscribe = live.subscribe((event) => this.heard(event));
      document.addEventListener("visibilitychange", this.seen);
      // Whatever the fetcher reads is no reason to begin anew.
      untrack(() => void this.refresh());
    }
    return () => {
      if (--this.users > 0) return;
      this.unsubscribe?.();
      document.removeEventListener("visibilitychange", this.seen);
      clearTimeout(this.timer);
      this.due = Infinity;
    };
  }

  async refresh(): Promise<void> {
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    this.due = Infinity;
    clearTimeout(this.timer);
    const start = performance.now();
    try {
      this.value = await this.fetcher();
      this.error = null;
    } catch (error) {
      if (error instanceof ApiError) this.error = error;
      else if (!(error instanceof DOMException)) throw error;
    } finally {
      this.running = false;
      this.waiting = false;
      this.ended = performance.now();
      this.cost = this.ended - start;
      if (this.again) {
        this.again = false;
        this.schedule(AT_LEAST_MS);
      }
    }
  }

  private heard(event: LiveEvent | null): void {
    const { on, seldom, only } = this.options;
    if (event === null) return this.schedule(SOON_MS);
    if (only && !only(event)) return;
    if (seldom?.includes(event.type)) return this.schedule(2500);
    if (!on || on.includes(event.type)) this.schedule(SOON_MS);
  }

  private schedule(wait_ms: number): void {
    if (this.running) {
      // What is on its way may be older than this news.
      this.again = true;
      return;
    }
    const rest_ms = this.options.rest_ms ?? Math.min(AT_MOST_MS, Math.max(AT_LEAST_MS, this.cost * SHARE));
    const due = Math.max(performance.now() + wait_ms, this.ended + rest_ms);
    if (due >= this.due) return;
    this.due = due;
    if (document.hidden) return; // `seen` makes up for it
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.refresh(), due - performance.now());
  }

  private readonly seen = (): void => {
    if (!document.hidden && this.due < Infinity) void this.refresh();
  };
}
