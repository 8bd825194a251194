// When jobs start and finish, in words: a time that is as likely as not, and one that is nearly certain.

import { clockTime, dateTime, duration, shortDuration } from "./format.ts";
import { isOver, isWaiting } from "./job.ts";
import type { ExpectedTime, Job, JobEta } from "./types.ts";

export interface EtaText {
  /** "36 min 7 s" */
  likely: string;
  /** "≤ 4 h", or "" when nothing more is known. */
  latest: string;
  /** "done in 36 min", for narrow places. */
  short: string;
  /** The same as sentences. */
  title: string;
}

const DAY_S = 86400;

/** How long it takes from now on, as likely as not; the job's own report where there is no forecast. */
export function left_s(job: Job, eta: JobEta | undefined, now_s: number): number | null {
  if (isOver(job.state)) return null;
  return eta?.finish.p50_s != null ? Math.max(0, eta.finish.p50_s - now_s) : job.eta_s;
}

/** For a cell of a table; null when nothing is known. */
export function doneText(job: Job, eta: JobEta | undefined, now_s: number): EtaText | null {
  const left = left_s(job, eta, now_s);
  if (left == null) return null;
  const latest_s = eta?.finish.p90_s;
  const title = [eta && isWaiting(job.state) ? sentence("Starts", eta.start, now_s) : "", eta ? sentence("Done", eta.finish, now_s) : `Done in ${duration(left)}, as it reports`];
  return {
    likely: duration(left),
    short: `done in ${shortDuration(left)}`,
    latest: latest_s == null ? "" : `≤ ${atMost(latest_s - now_s)}`,
    title: title.filter(Boolean).join(" "),
  };
}

/** "Done in 36 min (12:46), nine of ten times in 3 h 44 min (15:55)." */
export function sentence(what: string, moment: ExpectedTime, now_s: number): string {
  if (moment.p50_s == null) return "";
  const latest = moment.p90_s == null ? "" : `, nine of ten times in ${ahead(moment.p90_s, now_s)}`;
  return `${what} in ${ahead(moment.p50_s, now_s)}${latest}.`;
}

/** "12:46 – 15:55"; with the day where it is another one. */
export function clockRange(moment: ExpectedTime, now_s: number): string {
  const ends = [moment.p50_s, moment.p90_s].filter((time): time is number => time != null).map((time) => clock(time, now_s));
  return [...new Set(ends)].join(" – ");
}

/** One unit, rounded up: "45 s", "12 min", "5 h", "3 d" */
function atMost(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s <= 60) return `${Math.ceil(s)} s`;
  if (s <= 5400) return `${Math.ceil(s / 60)} min`;
  return s <= 2 * DAY_S ? `${Math.ceil(s / 3600)} h` : `${Math.ceil(s / DAY_S)} d`;
}

const ahead = (time_s: number, now_s: number): string => `${duration(Math.max(0, time_s - now_s))} (${clock(time_s, now_s)})`;

function clock(time_s: number, now_s: number): string {
  return time_s - now_s < DAY_S ? clockTime(time_s, false) : dateTime(time_s).slice(0, 16);
}
