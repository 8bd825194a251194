// One tab stop for a group of many: arrow keys move within it, Home and End to its ends.

/** `selector` finds the members. Vertical keys move by what the eye sees as a row when members are side by side. */
export function rove(selector: string): (group: HTMLElement) => () => void {
  return (group) => {
    const members = (): HTMLElement[] => [...group.querySelectorAll<HTMLElement>(selector)];

    function settle(): void {
      const all = members();
      const current = all.find((member) => member === document.activeElement) ?? all.find((member) => member.tabIndex === 0) ?? all[0];
      for (const member of all) member.tabIndex = member === current ? 0 : -1;
    }

    function onKey(event: KeyboardEvent): void {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const all = members();
      const at = all.indexOf(document.activeElement as HTMLElement);
      if (at < 0) return;
      const to = target(all, at, event.key);
      if (to == null) return;
      event.preventDefault();
      const member = all[to];
      member?.focus();
      member?.scrollIntoView({ block: "nearest" });
      settle();
    }

    const observer = new MutationObserver(settle);
    observer.observe(group, { childList: true, subtree: true });
    group.addEventListener("keydown", onKey);
    group.addEventListener("focusin", settle);
    settle();
    return () => {
      observer.disconnect();
      group.removeEventListener("keydown", onKey);
      group.removeEventListener("focusin", settle);
    };
  };
}

function target(all: HTMLElement[], at: number, key: string): number | null {
  switch (key) {
    case "ArrowRight":
      return Math.min(all.length - 1, at + 1);
    case "ArrowLeft":
      return Math.max(0, at - 1);
    case "Home":
      return 0;
    case "End":
      return all.length - 1;
    case "ArrowDown":
      return beside(all, at, 1);
    case "ArrowUp":
      return beside(all, at, -1);
    default:
      return null;
  }
}

/** The nearest member below (or above) the one at `at`. */
function beside(all: HTMLElement[], at: number, direction: 1 | -1): number {
  const here = all[at]!.getBoundingClientRect();
  let best = at;
  let distance = Infinity;
  all.forEach((member, index) => {
    const there = member.getBoundingClientRect();
    const down = direction * (there.top - here.top);
    if (down < here.height / 2) return;
    const far = down * 4 + Math.abs(there.left - here.left);
    if (far < distance) [best, distance] = [index, far];
  });
  return best;
}
