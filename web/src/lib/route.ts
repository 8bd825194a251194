// Hash routes: "#/jobs/17?tab=logs" → { page: "job", id: "17", query }.

export type Page = "overview" | "jobs" | "job" | "nodes" | "queues" | "decisions" | "health" | "waste" | "policy" | "submit" | "users" | "user" | "unknown";

export interface Route {
  page: Page;
  id: string;
  query: URLSearchParams;
}

const PAGES: readonly string[] = ["jobs", "nodes", "queues", "decisions", "health", "waste", "policy", "submit", "users"];

export function parse(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?");
  const query = new URLSearchParams(search);
  const [head = "", ...rest] = path.split("/").filter(Boolean);
  if (!head) return { page: "overview", id: "", query };
  if (head === "jobs" && rest.length === 1) return { page: "job", id: decode(rest[0]!), query };
  if (head === "users" && rest.length === 1) return { page: "user", id: decode(rest[0]!), query };
  if (PAGES.includes(head) && rest.length === 0) return { page: head as Page, id: "", query };
  return { page: "unknown", id: "", query };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const jobHref = (id: string): string => `#/jobs/${encodeURIComponent(id)}`;
export const userHref = (user: string): string => `#/users/${encodeURIComponent(user)}`;
