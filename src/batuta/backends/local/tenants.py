"""The unix users whose jobs a server of root's runs, and where the files of their jobs lie.

A server that listens at a unix socket runs each job as the unix account of the user who submitted it. The state
directory stays root's alone: records of runs, logs and results are there, and only root writes there. What a job
itself has to read or write lies outside, in the folder of job files, whose upper levels are root's, too. So no user
can put a link where the server or a runner will write:

<job files>/                 root, 0711: a user gets to a name that they know, and lists nothing
  <job>/                     root, 0711
    checkpoints/  work/      the user's, 0700
    reports/                 the user's, 0700: progress.jsonl
    runs/<n>/                root, 0711: host lists and limits of shares, which the job reads
      control/               the user's, 0700: requests for checkpoints and answers, result.json
      <rank>/                root, 0711: scripts, which belong to the user
  mount-points/<uid>/        the user's, 0700
  sdk-<hash>/                what scripts import
  set-aside/  trash/         root, 0700

Jobs of root itself are as those of a server for one user: all of it lies in the state directory.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import batuta.sdk
from batuta.backends.local.account_limits import limits_of
from batuta.spec.problem import InputError

OPEN_MODE: Final = 0o711
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_SERVER: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    )
)
_NAMED: Final = "job-files"
"""In the state directory: where the job files of its users are."""


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """An account of this machine, as its jobs get it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def for_runner(self) -> dict[str, Any]:
        """Who the runner shall make of itself, before it starts a command. OSError when the limits cannot be read."""
        limits = limits_of(self.name, self.uid, self.gid, self.groups)
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups), "limits": limits}

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What a job has of the server's environment, with what is the user's own in place of what is root's."""
        kept = {
            name: value for name, value in inherited.items() if name not in _OF_SERVER and not name.startswith("PYTHON")
        }
        own = {"PATH": _PATH, "HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}
        return kept | own


def find_account(name: str) -> UnixAccount | None:
    """Return the account with a name; None when there is none, or no /etc/passwd could name it."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):  # a NUL in a name
        return None
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    shell = found.pw_shell or "/bin/sh"
    return UnixAccount(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir or "/", shell)


def account_name(uid: int) -> str | None:
    """Return the name of the account with a user id; None when there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def group_names(account: UnixAccount) -> list[str]:
    return [grp.getgrgid(gid).gr_name for gid in account.groups]


class WrongAccount(Exception):
    """A job cannot run as the user who submitted it, now or later, and why."""


@dataclass(frozen=True, slots=True)
class TenantFolder:
    """What one job of another user than the server's has in the folder of job files."""

    area: Path
    path: Path
    uid: int
    gid: int

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def prepare(self, number: int, *, is_first: bool) -> None:
        """Makes what a run needs. All but the innermost folders are root's, so no link can be in the way."""
        if is_first and self.exists:
            # Of a job with the same number in a journal that is lost: nothing of it is for this one.
            aside = self.area / "set-aside"
            aside.mkdir(mode=0o700, exist_ok=True)
            os.rename(self.path, aside / f"{self.path.name}-{secrets.token_hex(4)}")
        for folder in (self.path, self.path / "runs", self.run(number)):
            _make_folder(folder, OPEN_MODE)
        for name in ("checkpoints", "work", "reports"):
            self._make_own(self.path / name)
        self._make_own(self.run(number) / "control")

    def run(self, number: int) -> Path:
        return self.path / "runs" / str(number)

    def scripts(self, number: int, rank: int) -> Path:
        """Makes the folder for the scripts of a replica."""
        _make_folder(folder := self.run(number) / str(rank), OPEN_MODE)
        return folder

    def mount_points(self) -> Path:
        """Makes the folder in which the user's replicas note the mount points that they use."""
        _make_folder(self.area / "mount-points", OPEN_MODE)
        self._make_own(folder := self.area / "mount-points" / str(self.uid))
        return folder

    def _make_own(self, folder: Path) -> None:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        os.chown(folder, self.uid, self.gid, follow_symlinks=False)


class Tenants:
    """Says as whom jobs run, and finds their files. Only root can have one."""

    def __init__(self, area: Path) -> None:
        self.area = area
        self.own_uid = os.geteuid()
        self.sdk = _copy_sdk(area)

    def account(self, user: str) -> UnixAccount | None:
        """Return the account as which a user's jobs run; None for the server's own. Raises WrongAccount."""
        found = find_account(user)
        if found is None:
            raise WrongAccount(
                f"{user or 'a job without a user'} has no unix account on this machine, and each job runs as that of "
                "its user: make the account, or submit as a user who has one"
            )
        return None if found.uid == self.own_uid else found

    def folder(self, name: str, account: UnixAccount) -> TenantFolder:
        """Return where the job with this folder name lies for its user. Raises WrongAccount when it is another's."""
        known = self.find(name)
        if known is not None and known.uid != account.uid:
            raise WrongAccount(
                f"its files belong to user id {known.uid}, and {account.name} is user id {account.uid} now: "
                "submit it again"
            )
        return TenantFolder(self.area, self.area / name, account.uid, account.gid)

    def find(self, name: str) -> TenantFolder | None:
        """Return where a job that has begun lies; None for one of the server's own user, or that has not begun."""
        try:
            found = os.lstat(self.area / name / "checkpoints")
        except OSError:
            return None
        return TenantFolder(self.area, self.area / name, found.st_uid, found.st_gid)


def open_area(state: Path, area: Path) -> Tenants:
    """Return the users' job files at a folder, which is made. Raises InputError when it cannot be used."""
    area = area.absolute()
    named = named_area(state)
    if named is not None and named != area:
        raise InputError.of(f"the job files of this state directory are in {named}", fix=f"--job-files {named}")
    try:
        area.mkdir(mode=OPEN_MODE, parents=True, exist_ok=True)
        found = os.lstat(area)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise InputError.of(
                f"--job-files {area} must be a folder of root's that no other user can write to",
                fix="chown root and chmod 711, or another folder",
            )
        _check_way(area)
        _claim(area, state)
        area.chmod(OPEN_MODE)
        (state / _NAMED).write_text(f"{area}\n", encoding="utf-8")
        return Tenants(area)
    except OSError as error:
        raise InputError.of(f"--job-files {area} cannot be used: {error.strerror}", fix="another folder") from error


def named_area(state: Path) -> Path | None:
    """Return where the job files of a state directory are; None where it never had users of their own."""
    try:
        return Path((state / _NAMED).read_text(encoding="utf-8").strip())
    except OSError:
        return None


def _check_way(area: Path) -> None:
    """Raise InputError unless every user gets to the folder, and no other user than root can exchange a part of it."""
    check_unexchangeable(area, f"--job-files {area}", "--job-files /var/lib/batuta/jobs")
    for folder in area.resolve().parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise InputError.of(
                f"--job-files {area}: jobs of other users cannot get there, for {folder} is closed to them",
                fix="a folder that all may pass, as in --job-files /var/lib/batuta/jobs",
            )


def check_unexchangeable(path: Path, option: str, good: str) -> None:
    """Raise InputError when another user than root could put something else at a path, or at a folder on the way."""
    for folder in path.resolve().parents:
        found = folder.stat()
        # In a sticky folder only its owner and that of an entry exchange the entry.
        is_open = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if is_open or found.st_uid not in (0, os.geteuid()):
            raise InputError.of(
                f"{option}: other users can exchange what is in {folder}",
                fix=f"a folder in which only root can write, as in {good}",
            )


def _claim(area: Path, state: Path) -> None:
    """Raise InputError when the folder holds something else, or the job files of another state directory.

    Jobs have equal names there. And what is in another folder, the state directory say, is not to be opened to all.
    """
    claim = area / "state-directory"
    try:
        owner = claim.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        if any(path.name != "lost+found" for path in area.iterdir()):
            message = f"--job-files {area} holds something else"
            raise InputError.of(message, fix="an empty folder, or a new one") from None
    else:
        if owner != str(state):
            raise InputError.of(f"--job-files {area} is that of the server on {owner}", fix="another folder")
    claim.write_text(f"{state}\n", encoding="utf-8")
    claim.chmod(0o600)


def _copy_sdk(area: Path) -> Path:
    """Return a folder with nothing but `batuta.sdk`, copied: users may not get to where Batuta is installed."""
    source = Path(batuta.sdk.__file__).parent
    files = sorted(path for path in source.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files))
    folder = area / f"sdk-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        draft = area / f".sdk-{secrets.token_hex(4)}"
        (draft / "batuta" / "sdk").mkdir(parents=True)
        for path in files:
            shutil.copyfile(path, draft / "batuta" / "sdk" / path.name)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        draft.rename(folder)
    return folder


def _make_folder(folder: Path, mode: int) -> None:
    with suppress(FileExistsError):
        folder.mkdir()
    folder.chmod(mode)  # whatever the umask
