// Keys that work everywhere, unless the user is typing.

import { ui } from "./ui.svelte.ts";

const GO: Record<string, string> = { o: "#/", j: "#/jobs", n: "#/nodes", q: "#/queues", u: "#/users", d: "#/decisions", h: "#/health", w: "#/waste", p: "#/policy", s: "#/submit" };

export const HELP: [keys: string[], text: string][] = [
  [["/"], "Filter"],
  [["?"], "This help"],
  [["g", "o"], "Overview"],
  [["g", "j"], "Jobs"],
  [["g", "n"], "Nodes"],
  [["g", "q"], "Queues"],
  [["g", "u"], "Users"],
  [["g", "d"], "Decisions"],
  [["g", "h"], "Health"],
  [["g", "w"], "Waste"],
  [["g", "p"], "Policy"],
  [["g", "s"], "Submit a task"],
  [["t"], "Next theme"],
  [["↑", "↓"], "Previous or next row, GPU"],
  [["Enter"], "Open it"],
  [["Esc"], "Close, leave the filter"],
];

let going = 0;

const typing = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

export function nextTheme(): void {
  ui.setTheme(ui.theme === "auto" ? (ui.dark ? "light" : "dark") : ui.theme === "dark" ? "light" : "dark");
}

export function shortcuts(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const key = event.key.toLowerCase();
  const soon = performance.now() - going < 1200;
  going = 0;
  if (soon && GO[key]) {
    event.preventDefault();
    location.hash = GO[key];
  } else if (key === "g") {
    going = performance.now();
  } else if (key === "/") {
    event.preventDefault();
    const filter = document.querySelector<HTMLInputElement>("[data-filter]");
    if (filter) filter.focus();
    else location.hash = "#/jobs";
  } else if (event.key === "?") {
    ui.help = true;
  } else if (key === "t") {
    nextTheme();
  }
}
