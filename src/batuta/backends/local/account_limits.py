"""The limits that an administrator has set for an account in /etc/security/limits.conf, as a login would give them.

Jobs of other users are not logins, and pass no PAM: so a server of root's reads the file itself, in the form and with
the precedence of limits.conf(5). The user's own line counts before one of a group, that before `*`; of two that count
alike the later one. Files in limits.d come after limits.conf, by name. Lines that cannot be read are passed over, as
`pam_limits` does; limits on logins are for logins.
"""

from __future__ import annotations

import grp
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SECURITY: Final = Path("/etc/security")
_UNLIMITED: Final = -1
_KIB, _MINUTE_S = 1024, 60
_ITEMS: Final = {
    **dict.fromkeys(("core", "data", "fsize", "memlock", "rss", "stack", "as"), _KIB),
    **dict.fromkeys(("nofile", "nproc", "sigpending", "msgqueue", "rtprio", "nice"), 1),
    "cpu": _MINUTE_S,
}
"""What a limit is on, and how many of the kernel's units one of the file's is."""
_BY_USER, _BY_GROUP, _BY_ALL = range(3)

Limits = dict[str, list[int | None]]
"""By the kernel's name, as in RLIMIT_NOFILE without the prefix: soft and hard limit; None: it stays as it is."""


class _Account(NamedTuple):
    name: str
    uid: int
    gid: int
    groups: Sequence[int]
    names: set[str]  # of its groups


class _Line(NamedTuple):
    rank: int
    kind: str  # soft, hard, or - for both
    item: str
    value: str


def limits_of(user: str, uid: int, gid: int, groups: Sequence[int], folder: Path = SECURITY) -> Limits:
    """Return the limits of an account. OSError when a file is there and cannot be read: nothing is concluded then."""
    who = _Account(user, uid, gid, groups, {_group_name(one) for one in groups})
    found: dict[tuple[str, int], tuple[int, int]] = {}  # by item, soft or hard: how near the line was, and the value
    for path in (folder / "limits.conf", *sorted((folder / "limits.d").glob("*.conf"))):
        for line in _lines_for(path, who):
            if line.rank != _BY_ALL and line.kind == "-" and not line.item:
                return {}  # a user or a group that is named as having none
            value = _read_value(line.item, line.value)
            if value is None:
                continue
            for at in {"soft": (0,), "hard": (1,), "-": (0, 1)}.get(line.kind, ()):
                if line.rank <= found.get((line.item, at), (_BY_ALL, 0))[0]:
                    found[line.item, at] = line.rank, value
    limits: Limits = {}
    for (item, at), (_, value) in found.items():
        limits.setdefault(item.upper(), [None, None])[at] = value
    return limits


def _lines_for(path: Path, who: _Account) -> Iterator[_Line]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        domain, kind, item, value, *_ = [*line.partition("#")[0].split(), "", "", "", ""]
        if domain == who.name or _is_in_range(domain, who.uid, (who.uid,)):
            yield _Line(_BY_USER, kind, item, value)
        elif domain.startswith("@") and (domain[1:] in who.names or _is_in_range(domain[1:], who.gid, who.groups)):
            yield _Line(_BY_GROUP, kind, item, value)
        elif domain == "*":
            yield _Line(_BY_ALL, kind, item, value)


def _is_in_range(text: str, own: int, ids: Sequence[int]) -> bool:
    """Whether the account's own id is in `min:max` or `min:`, or any of its ids is that of `:id`."""
    low, colon, high = text.partition(":")
    if not colon or not (low or high) or not all(part.isdecimal() for part in (low, high) if part):
        return False
    if not low:
        return int(high) in ids
    return int(low) <= own and (not high or own <= int(high))


def _read_value(item: str, text: str) -> int | None:
    """Return a limit in the kernel's units; None for what is no limit of a process."""
    unit = _ITEMS.get(item)
    if unit is None:
        return None
    if text in ("unlimited", "infinity", "-1") and item not in ("nice", "rtprio"):
        return _most_files() if item == "nofile" else _UNLIMITED
    try:
        value = int(text)
    except ValueError:
        return None
    if item == "nice":
        return max(0, min(20 - value, 40))
    return value * unit if value >= 0 else None


def _most_files() -> int:
    """The kernel lets no process have an unlimited number of files."""
    return int(Path("/proc/sys/fs/nr_open").read_text())


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""
