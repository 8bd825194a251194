"""What the API server was asked, and by whom, from its audit log: no test need guess about hot loops."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_LONGEST_LINE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered, or a watch that was opened."""

    user: str
    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection."""
    resource: str
    """`pods`, `pods/binding`, `unifiedjobs/status`; empty for a path such as /readyz."""
    namespace: str
    name: str
    code: int
    at: str
    """When it came in, RFC 3339 with microseconds."""
    path: str
    agent: str
    is_forbidden: bool
    """Whether the user may not do this. Other refusals (403 for a quota, say) are of what was asked."""

    @property
    def at_s(self) -> float:
        """When it came in, in Unix seconds."""
        return datetime.fromisoformat(self.at).timestamp()


class RequestsSeen:
    """The requests to one API server, in the order of their answers."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def mark(self) -> int:
        """This moment, for `since`: the end of the last line that is written to its end."""
        if not self._log.exists():
            return 0
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_LINE))
            return size - len(file.read().rpartition(b"\n")[2])

    def since(self, mark: int = 0, user: str | None = None) -> list[Request]:
        """All requests after a mark (default: from the start), of one user or of everybody."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(mark)
            lines = file.read().split(b"\n")
        seen: dict[str, Request] = {}
        for line in lines[:-1]:  # the last one is empty, or not written to its end yet
            entry = json.loads(line)
            # A watch is there twice: when it is opened and when it ends.
            if entry["auditID"] not in seen and user in (None, entry["user"]["username"]):
                seen[entry["auditID"]] = _request(entry)
        return list(seen.values())

    def count(self, mark: int = 0, user: str | None = None) -> Counter[tuple[str, str]]:
        """How many requests after a mark, by verb and resource."""
        return Counter((request.verb, request.resource) for request in self.since(mark, user))


def _request(entry: dict) -> Request:
    target = entry.get("objectRef", {})
    parts = [target.get("resource", ""), target.get("subresource", "")]
    return Request(
        user=entry["user"]["username"],
        verb=entry["verb"],
        resource="/".join(part for part in parts if part),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=entry.get("responseStatus", {}).get("code", 0),
        at=entry["requestReceivedTimestamp"],
        path=entry["requestURI"],
        agent=entry.get("userAgent", ""),
        is_forbidden=entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        or entry.get("responseStatus", {}).get("code") == 401,
    )
