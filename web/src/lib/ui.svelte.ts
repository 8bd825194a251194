// State of the page itself: route, theme, what is pointed at, notices.

import { parse, type Route } from "./route.ts";

class Ui {
  route = $state.raw<Route>(parse(location.hash));
  theme = $state<"auto" | "dark" | "light">("auto");
  /** The job that the pointer or the focus is on: map, timeline and lists show it together. */
  pointed = $state<string | null>(null);
  help = $state(false);
  notices = $state.raw<{ key: number; text: string; bad: boolean }[]>([]);
  private keys = 0;

  constructor() {
    const chosen = document.documentElement.dataset["theme"];
    if (chosen === "dark" || chosen === "light") this.theme = chosen;
    addEventListener("hashchange", () => {
      this.route = parse(location.hash);
      this.pointed = null;
    });
  }

  setTheme(theme: "auto" | "dark" | "light"): void {
    this.theme = theme;
    if (theme === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme;
    try {
      localStorage.setItem("batuta-theme", theme);
    } catch {
      // Storage may be forbidden: the choice lasts as long as the page.
    }
  }

  get dark(): boolean {
    return this.theme === "dark" || (this.theme === "auto" && systemDark.value);
  }

  notify(text: string, bad = false): void {
    const key = ++this.keys;
    this.notices = [...this.notices.slice(-3), { key, text, bad }];
    setTimeout(() => this.dismiss(key), bad ? 9000 : 5000);
  }

  dismiss(key: number): void {
    this.notices = this.notices.filter((notice) => notice.key !== key);
  }
}

class SystemDark {
  value = $state(false);

  constructor() {
    const query = matchMedia("(prefers-color-scheme: dark)");
    this.value = query.matches;
    query.addEventListener("change", () => (this.value = query.matches));
  }
}

const systemDark = new SystemDark();
export const ui = new Ui();
