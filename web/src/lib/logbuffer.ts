// The end of a log that grows: whole lines, without terminal codes, bounded.

// eslint-disable-next-line no-control-regex
const TERMINAL_CODES = /\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

export class LogBuffer {
  lines: string[] = [];
  dropped = 0;
  private rest = "";
  private readonly keep: number;

  constructor(keep = 5000) {
    this.keep = keep;
  }

  /** Takes what arrived, however it was cut. */
  push(text: string): void {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() ?? "";
    for (const part of parts) this.lines.push(clean(part));
    // Cut seldom and much: shifting five thousand lines for each new one would cost more than it saves.
    if (this.lines.length > this.keep * 1.2) {
      const cut = this.lines.length - this.keep;
      this.lines.splice(0, cut);
      this.dropped += cut;
    }
    // A "line" without an end must not grow for ever either.
    if (this.rest.length > 65536) {
      this.lines.push(clean(this.rest));
      this.rest = "";
    }
  }

  /** What there is, with the line that is still being written. */
  get text(): string {
    const partial = this.rest ? clean(this.rest) : "";
    return partial ? [...this.lines, partial].join("\n") : this.lines.join("\n");
  }

  get count(): number {
    return this.lines.length + (this.rest ? 1 : 0);
  }
}

/** A progress bar rewrites its line with \r: what stands at last is what counts. */
export function clean(line: string): string {
  const bare = line.replace(TERMINAL_CODES, "").replace(/\r+$/, "");
  return bare.slice(bare.lastIndexOf("\r") + 1);
}

export interface Piece {
  text: string;
  hit: boolean;
}

/** A line cut at the places where a text stands, however its letters are written. */
export function pieces(line: string, sought: string): Piece[] {
  const found: Piece[] = [];
  let at = 0;
  const pattern = new RegExp(sought.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  for (const match of sought ? line.matchAll(pattern) : []) {
    if (match.index > at) found.push({ text: line.slice(at, match.index), hit: false });
    at = match.index + match[0].length;
    found.push({ text: match[0], hit: true });
  }
  if (at < line.length) found.push({ text: line.slice(at), hit: false });
  return found;
}
