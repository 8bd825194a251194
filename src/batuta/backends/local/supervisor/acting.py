"""Who a runner acts as: commands run as the user of their job, and so are files written that lie in the user's folders.

A runner of root's that wrote into a folder of a user could be led elsewhere by a link that the user puts there. As that
user it can do no more than the user could. Its real user stays root's, so that the user can neither stop nor trace it.
"""

from __future__ import annotations

import errno
import os

from batuta.backends.local.supervisor.lean_stdlib import PR_SET_DUMPABLE, TYPE_CHECKING, call, prctl

if TYPE_CHECKING:
    from typing import Any


_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""The number of keyctl(2), for which the C library has no function, by machine."""
_JOIN_SESSION_KEYRING = 1


def become(user: dict[str, Any]) -> None:
    """Makes this process the user's, for good. OSError when that is not possible; then nothing may be run."""
    _take_limits(user.get("limits") or {})
    _leave_session_keyring()
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])


def _take_limits(limits: dict[str, list[int | None]]) -> None:
    """Sets what the machine's administrator lets the user have. What Batuta has set before is not made looser."""
    import resource

    for name, (soft, hard) in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        soft_now, hard_now = resource.getrlimit(kind)
        soft, hard = soft_now if soft is None else soft, hard_now if hard is None else hard
        if name == "NPROC":
            soft, hard = _least(soft, soft_now), _least(hard, hard_now)
        try:
            resource.setrlimit(kind, (_least(soft, hard), hard))
        except ValueError as problem:  # what Python makes of EPERM and EINVAL here
            raise OSError(errno.EPERM, str(problem), f"limits.conf: {name.lower()} {soft}:{hard}") from None


def _leave_session_keyring() -> None:
    """Takes an empty session keyring: a process that has root's may read the keys in it, whoever the process becomes.

    It is made as root: the kernel counts keyrings of users, and lets each have 200 or so.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        return
    try:
        call("syscall", number, _JOIN_SESSION_KEYRING, 0)
    except OSError as problem:
        if problem.errno not in (errno.ENOSYS, errno.EPERM):  # no keys in this kernel, or for this container
            raise


def _least(one: int, other: int) -> int:
    """The smaller of two limits; -1 is none."""
    return max(one, other) if -1 in (one, other) else min(one, other)


def be_visible(keep: tuple[int, ...]) -> None:
    """Lets this process, which has become the user's, write its own files in /proc: a user namespace takes that.

    The user may then trace it, too, before it is another program. So it first closes what the runner has open.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed them
    prctl(PR_SET_DUMPABLE, 1)


def load_all() -> None:
    """Imports what a view needs late: the user may not be able to read the Python that this runs with."""
    import _codecs

    for name in ("_ctypes", "binascii", "fcntl"):
        __import__(name)
    _codecs.lookup("ascii")


class ActingAs:
    """Within it, files are opened, made and removed as a user; None: as whoever this process is."""

    def __init__(self, user: dict[str, Any] | None) -> None:
        self._user = user
        self._own: tuple[int, int, list[int]] | None = None

    def __enter__(self) -> None:
        if self._user is not None:
            self._own = os.geteuid(), os.getegid(), os.getgroups()
            os.setgroups(self._user["groups"])
            os.setegid(self._user["gid"])
            os.seteuid(self._user["uid"])

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            uid, gid, groups = self._own
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)
