// Which of the job colours (--job-0 … in app.css) a job has: the same everywhere, for as long as it lives.

export const JOB_COLOURS = 12;

/** Neighbouring numbers get colours that are far apart: 5 and 12 have no common divisor. */
export function jobColour(id: string): number {
  if (/^\d{1,15}$/.test(id)) return (Number(id) * 5) % JOB_COLOURS;
  let hash = 2166136261;
  for (let i = 0; i < id.length; i++) hash = Math.imul(hash ^ id.charCodeAt(i), 16777619) >>> 0;
  return hash % JOB_COLOURS;
}

export const jobPaint = (id: string): string => `var(--job-${jobColour(id)})`;
