"""A mount namespace for one replica: what a task wants mounted is seen by its own processes alone.

The command of a replica runs in a mount namespace of its own (mount_namespaces(7)), in which sources are
bound to their targets. Without the right to make one, it is made in a user namespace with the same user.

A target that is not there needs a mount point. It is made for as long as replicas use it, as an empty folder
or file, and removed after the last one: each of them holds a shared lock on a file that stands for it, and
the replica that gets the lock alone removes both. Where no mount point can be made, because the folder around
it is not ours, the namespace gets a copy of that folder in memory whose entries are bound to the real ones.
"""

from __future__ import annotations

import errno
import os
import stat

from batuta.backends.local.supervisor.lean_stdlib import TYPE_CHECKING, call

if TYPE_CHECKING:
    from typing import Any


_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x1000, 0x4000, 0x80000, 2
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


class MountNamespace:
    """What a replica sees beside what is there: `prepare` and `leave` in the runner, `enter` in the command.

    Each entry of `wanted` has a `source`, a `target` and `optional`: such a one is left out where the target
    is something of the user's own, or where no view can be had.
    """

    def __init__(self, wanted: list[dict[str, Any]], locks: str, staging: str) -> None:
        self._wanted = wanted
        self._locks = locks
        self._staging = staging
        self._held: list[tuple[int, str, str]] = []
        """Locks with their files, and the mount points that they stand for; folders before what is inside."""
        self._mounts: list[tuple[str, str]] = []
        self._reproduced: set[str] = set()

    def prepare(self) -> None:
        """Makes the mount points. OSError when a source is not there, or a target is of another kind."""
        seen: list[tuple[str, str]] = []
        for one in sorted(self._wanted, key=lambda one: len(one["target"])):
            source, target = one["source"], os.path.normpath(one["target"])
            try:
                # What lies in another mount is mounted in that one's source, and seen through it.
                inside = _through(target, seen)
                is_folder = stat.S_ISDIR(os.stat(source).st_mode)
                if self._is_needed(source, inside, is_folder, optional=one["optional"]):
                    self._mounts.insert(0, (source, inside))
                    seen.insert(0, (source, target))
            except OSError:
                if not one["optional"]:
                    raise

    def _is_needed(self, source: str, target: str, is_folder: bool, *, optional: bool) -> bool:
        """Whether something is to be mounted, with a mount point for it where one can be made."""
        steps, step = [target], os.path.dirname(target)
        while step != "/" and (not os.path.lexists(step) or os.path.exists(self._lock_of(step))):
            steps.append(step)
            step = os.path.dirname(step)
        for step in reversed(steps):
            if not self._take(step, is_folder or step != target):
                break
        if not os.path.lexists(target):
            return True  # it cannot be made: `enter` finds a way
        if os.path.samefile(source, target):
            return False
        if stat.S_ISDIR(os.stat(target).st_mode) != is_folder:
            kind = errno.ENOTDIR if is_folder else errno.EISDIR
            raise OSError(kind, f"file_mounts: {os.strerror(kind)}", target)
        return not (optional and target not in [held[2] for held in self._held] and _has_content(target))

    def _take(self, target: str, is_folder: bool) -> bool:
        """Makes a mount point or shares one that another replica made; False when that is not possible."""
        import fcntl

        name = self._lock_of(target)
        while True:
            try:
                file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError:
                return os.path.lexists(target)
            fcntl.flock(file, fcntl.LOCK_SH)
            try:
                if os.path.samestat(os.fstat(file), os.stat(name)):
                    break
            except FileNotFoundError:
                pass
            os.close(file)  # it was removed while we waited for it
        is_ours = os.fstat(file).st_size > 0
        if os.path.lexists(target) and not is_ours:
            self._held.append((file, name, ""))
            return True
        try:
            if not is_ours:
                os.write(file, target.encode("utf-8", "surrogateescape"))
            _make(target, is_folder)
        except OSError as problem:
            os.ftruncate(file, 0)
            self._held.append((file, name, ""))
            if problem.errno in _NOT_OURS:
                return False
            raise
        self._held.append((file, name, target))
        return True

    def _lock_of(self, target: str) -> str:
        """The file that stands for a mount point: by its end, for people, and the sum of all of it."""
        import binascii

        total = binascii.crc32(os.fsencode(target))
        return os.path.join(self._locks, f"{total:08x}-{target.replace('/', '-')[-48:]}")

    def leave(self) -> None:
        """Removes the mount points that no other replica uses."""
        import fcntl

        while self._held:
            file, name, target = self._held.pop()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if target:
                    _unmake(target)
                if not target or not os.path.lexists(target):
                    os.unlink(name)
            except OSError:
                pass  # another replica uses it
            finally:
                os.close(file)
        self._remove_staging()

    def _remove_staging(self) -> None:
        """Removes the folders that were only mounted over inside of the view."""
        try:
            for name in os.listdir(self._staging):
                os.rmdir(os.path.join(self._staging, name))
            os.rmdir(self._staging)
        except OSError:
            return  # there are none

    def enter(self) -> None:
        """Gives this process the view. OSError says what could not be mounted."""
        if not self._mounts:
            return
        try:
            _leave_namespace()
            for source, target in self._mounts:
                self._make_inside(target, os.path.isdir(source))
            # Opened before the first mount: that may lie over another source.
            sources = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _ in self._mounts]
            for (_, target), file in zip(self._mounts, sources, strict=True):
                _bind(f"/proc/self/fd/{file}", os.path.realpath(target))
        except OSError as problem:
            if any(not one["optional"] for one in self._wanted):
                targets = ", ".join(target for _, target in self._mounts)
                raise OSError(problem.errno, problem.strerror, f"file_mounts: {targets}") from problem

    def _make_inside(self, target: str, is_folder: bool) -> None:
        """Makes a mount point that only the view has, where none could be made outside."""
        if os.path.lexists(target):
            return
        around = os.path.dirname(target)
        while not os.path.isdir(around):
            around = os.path.dirname(around)
        if around not in self._reproduced:
            self._reproduce(around)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _make(target, is_folder)

    def _reproduce(self, folder: str) -> None:
        """Puts a folder in memory in place of another one, with all its entries."""
        stage = os.path.join(self._staging, str(len(self._reproduced)))
        self._reproduced.add(folder)
        os.makedirs(stage, exist_ok=True)
        call("mount", b"tmpfs", stage, b"tmpfs", 0, b"mode=755,size=1m")
        for name in os.listdir(folder):
            real, copy = os.path.join(folder, name), os.path.join(stage, name)
            if os.path.islink(real):
                os.symlink(os.readlink(real), copy)
            else:
                _make(copy, os.path.isdir(real))
                _bind(real, copy)
        if folder != "/":
            _bind(stage, folder)
            return
        old = os.path.join(stage, ".old")
        os.mkdir(old)
        call("pivot_root", stage, old)
        os.chdir("/")
        call("umount2", b"/.old", _MNT_DETACH)
        os.rmdir("/.old")


def sweep(locks: str) -> None:
    """Removes mount points that were left by replicas whose runners were killed."""
    try:
        names = os.listdir(locks)
    except OSError:
        return
    view = MountNamespace([], locks, "")
    for name in names:
        path = os.path.join(locks, name)
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            view._held.append((file, path, os.fsdecode(os.read(file, 8192))))
        except OSError:
            continue
    view._held.sort(key=lambda held: len(held[2]))  # what lies inside of another is left first
    view.leave()


def why_not() -> str:
    """Why this machine gives no private views; empty when it does. Changes the process that asks."""
    try:
        _leave_namespace()
        call("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=64k")
    except (OSError, ImportError, AttributeError) as problem:
        return str(getattr(problem, "strerror", None) or problem)
    return ""


def _through(target: str, seen: list[tuple[str, str]]) -> str:
    """Where a target really lies, as far as it is inside of others; the innermost comes first."""
    for source, other in seen:
        if target.startswith(f"{other}/"):
            return source + target[len(other) :]
    return target


def _leave_namespace() -> None:
    """Goes on in mounts of its own; what the machine mounts later is still seen."""
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", _CLONE_NEWNS)
    except PermissionError:
        call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    call("mount", b"none", b"/", 0, _MS_REC | _MS_SLAVE, 0)


def _bind(source: str, target: str) -> None:
    call("mount", source, target, 0, _MS_BIND | _MS_REC, 0)


def _make(path: str, is_folder: bool) -> None:
    try:
        if is_folder:
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return  # another replica was faster


def _unmake(path: str) -> None:
    """Removes a mount point, unless it has content by now."""
    try:
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(path)
        elif stat.S_ISREG(found.st_mode) and found.st_size == 0:
            os.unlink(path)
    except OSError:
        return


def _has_content(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except OSError:
        return True
