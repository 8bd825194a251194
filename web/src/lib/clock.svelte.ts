// The server's time, ticking once a second while the page is seen.

class Clock {
  now_s = $state(Date.now() / 1000);
  private ahead_s = 0;

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.tick();
    }, 1000);
    document.addEventListener("visibilitychange", () => this.tick());
  }

  /** Browsers' clocks may be wrong: the server says what it is. */
  setServerTime(now_s: number): void {
    this.ahead_s = now_s - Date.now() / 1000;
    this.tick();
  }

  private tick(): void {
    this.now_s = Date.now() / 1000 + this.ahead_s;
  }
}

export const clock = new Clock();
