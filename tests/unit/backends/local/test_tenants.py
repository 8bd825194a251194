"""Who jobs run as, and which folders are fit for the files of their jobs."""

import ctypes
import os
import platform
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from batuta.backends.local.files import read_small
from batuta.backends.local.mounts import lock_folder
from batuta.backends.local.supervisor.acting import ActingAs, become
from batuta.backends.local.supervisor.containment import Containment
from batuta.backends.local.supervisor.loop import start_command
from batuta.backends.local.tenants import Tenants, WrongAccount, find_account, named_area, open_area
from batuta.spec.problem import InputError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
ANA, BEN = "games", "daemon"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users get to: those of pytest are closed."""
    with TemporaryDirectory(prefix="batuta-tenants-") as made:
        Path(made).chmod(0o755)
        (Path(made) / "state").mkdir(mode=0o700)
        yield Path(made)


def open_tenants(folder: Path) -> Tenants:
    return open_area(folder / "state", folder / "jobs")


def test_a_users_jobs_run_as_the_account_of_that_name_and_roots_as_the_server(folder: Path) -> None:
    tenants, known = open_tenants(folder), pwd.getpwnam(ANA)
    account = tenants.account(ANA)
    assert account is not None
    assert (account.uid, account.gid, account.home) == (known.pw_uid, known.pw_gid, known.pw_dir)
    assert account.groups == tuple(os.getgrouplist(ANA, known.pw_gid))
    assert tenants.account("root") is None
    for unknown in ("", "no-such-account", "5", "a\0b"):
        with pytest.raises(WrongAccount, match="has no unix account"):
            tenants.account(unknown)


def test_a_job_has_nothing_of_roots_environment_that_is_for_root() -> None:
    account = find_account(ANA)
    assert account is not None
    env = account.environment(
        {"PATH": "/root/bin", "HOME": "/root", "PYTHONPATH": "/root/x", "LANG": "C", "TMPDIR": "/x"}
    )
    assert env["HOME"] == account.home
    assert "/root" not in env["PATH"]
    assert set(env) == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG"}


def test_only_the_innermost_folders_are_the_users(folder: Path) -> None:
    tenants, account = open_tenants(folder), find_account(ANA)
    assert account is not None
    own = tenants.folder("7", account)
    own.prepare(0, is_first=True)
    found = {str(path.relative_to(own.path)): path.stat() for path in own.path.rglob("*")}
    users = {name for name, facts in found.items() if facts.st_uid == account.uid}
    assert users == {"checkpoints", "work", "reports", "runs/0/control"}
    assert {stat.S_IMODE(found[name].st_mode) for name in users} == {0o700}
    assert {stat.S_IMODE(found[name].st_mode) for name in found.keys() - users} == {0o711}
    assert tenants.find("7") == own
    assert tenants.find("8") is None


def test_another_user_gets_nothing_of_a_job_that_had_the_same_number(folder: Path) -> None:
    tenants, ana, ben = open_tenants(folder), find_account(ANA), find_account(BEN)
    assert ana is not None
    assert ben is not None
    own = tenants.folder("7", ana)
    own.prepare(0, is_first=True)
    (own.path / "checkpoints" / "x").touch()
    with pytest.raises(WrongAccount, match="belong to user id"):
        tenants.folder("7", ben)
    own.prepare(0, is_first=True)  # the journal was lost, and numbers begin anew
    assert not (own.path / "checkpoints" / "x").exists()
    assert len(list((folder / "jobs" / "set-aside").iterdir())) == 1


def test_a_folder_that_users_cannot_pass_or_can_write_to_is_refused(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    with pytest.raises(InputError, match="closed to them"):
        open_area(folder / "state", folder / "closed" / "jobs")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    with pytest.raises(InputError, match="can exchange"):
        open_area(folder / "state", folder / "open" / "jobs")
    with pytest.raises(InputError, match="no other user can write"):
        open_area(folder / "state", folder / "open")
    assert named_area(folder / "state") is None


def test_job_files_are_those_of_one_state_directory(folder: Path) -> None:
    open_tenants(folder)
    assert named_area(folder / "state") == folder / "jobs"
    with pytest.raises(InputError, match="are in"):
        open_area(folder / "state", folder / "elsewhere")
    (folder / "other").mkdir(mode=0o700)
    with pytest.raises(InputError, match="is that of the server on"):
        open_area(folder / "other", folder / "jobs")


def test_a_file_of_another_user_is_not_read_for_a_job(folder: Path) -> None:
    account = find_account(ANA)
    assert account is not None
    own, roots, link = folder / "own", folder / "roots", folder / "link"
    for path in (own, roots):
        path.write_text("x")
    os.chown(own, account.uid, account.gid)
    link.symlink_to(own)
    assert read_small(own, owner=account.uid) == b"x"
    for path in (roots, link):
        with pytest.raises(OSError, match=r"no regular file of user|symbolic links"):
            read_small(path, owner=account.uid)


def test_what_is_written_for_a_user_is_written_as_that_user(folder: Path) -> None:
    account = find_account(ANA)
    assert account is not None
    before = (os.geteuid(), os.getegid(), os.getgroups())
    with ActingAs(account.for_runner()):
        with pytest.raises(PermissionError):
            (folder / "state" / "x").touch()
        assert os.getgroups() == sorted(account.groups)
        assert os.getresuid()[0] == 0  # so that the user cannot stop it
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


def test_a_user_cannot_take_the_place_where_roots_mount_points_are_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can make a folder of any name in /tmp. No job of root's would start, for each of them has mounts."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    taken = folder / "batuta-mount-points-0"
    taken.mkdir()
    os.chown(taken, pwd.getpwnam(ANA).pw_uid, -1)
    assert lock_folder().stat().st_uid == 0


def test_a_folder_that_holds_something_else_is_not_opened_to_all(folder: Path) -> None:
    (folder / "state" / "token").write_text("secret")
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "letters").touch()
    for area in (folder / "state", folder / "home"):
        with pytest.raises(InputError, match="holds something else"):
            open_area(folder / "state", area)
        assert stat.S_IMODE(area.stat().st_mode) == 0o700


def test_a_limit_that_the_kernel_refuses_is_named(folder: Path) -> None:
    account = find_account(ANA)
    assert account is not None
    user = account.for_runner() | {"limits": {"NOFILE": [None, 2**40]}}
    with pytest.raises(OSError, match=r"limits\.conf: nofile"):
        start_command(["true"], {}, "/", 2, user=user)


def test_the_kernel_bounds_a_users_processes_where_there_is_no_control_group() -> None:
    account = find_account(ANA)
    assert account is not None
    reader, writer = os.pipe()
    limits = Containment({"processes": 20, "memory_bytes": 2**30})
    start_command(["bash", "-c", "ulimit -u"], {}, "/", writer, containment=limits, user=account.for_runner())
    os.close(writer)
    with open(reader, encoding="ascii") as said:
        assert 20 <= int(said.read()) < 1000
    os.wait()


_ADD_KEY, _REQUEST_KEY, _KEYCTL = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}.get(
    platform.machine(), (None, None, None)
)
_SESSION, _JOIN_SESSION = -3, 1


@pytest.mark.skipif(_KEYCTL is None, reason="the numbers of this machine's calls are not known here")
def test_keys_of_roots_session_are_not_a_jobs() -> None:
    account = find_account(ANA)
    assert account is not None
    call = ctypes.CDLL(None, use_errno=True).syscall

    def finds_the_key(*, as_user: bool) -> bool:
        if (pid := os.fork()) == 0:
            found = 2
            try:
                call(_KEYCTL, _JOIN_SESSION, None)
                if call(_ADD_KEY, b"user", b"roots-key", b"secret", 6, _SESSION) > 0:
                    if as_user:
                        become(account.for_runner())
                    found = int(call(_REQUEST_KEY, b"user", b"roots-key", None, 0) > 0)
            finally:
                os._exit(found)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 2:
            pytest.skip("this kernel keeps no keys, or not for this container")
        return bool(code)

    assert finds_the_key(as_user=False)
    assert not finds_the_key(as_user=True)
