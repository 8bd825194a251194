"""What limits.conf gives an account: the nearest line counts, and the job has it."""

import os
import pwd
import resource
import tempfile
from pathlib import Path

import pytest

from batuta.backends.local.account_limits import Limits, limits_of
from batuta.backends.local.supervisor.loop import start_command

ANA = pwd.getpwnam("games")
GROUPS = (ANA.pw_gid, 100)  # 100 is `users` on every Linux


def limits(folder: Path, conf: str, **more: str) -> Limits:
    (folder / "limits.d").mkdir(exist_ok=True)
    (folder / "limits.conf").write_text(conf)
    for name, text in more.items():
        (folder / "limits.d" / f"{name}.conf").write_text(text)
    return limits_of("games", ANA.pw_uid, ANA.pw_gid, GROUPS, folder)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("games soft nofile 100", {"NOFILE": [100, None]}),
        ("games - nofile 100", {"NOFILE": [100, 100]}),
        ("games soft nofile 100\ngames hard nofile 200 # for now", {"NOFILE": [100, 200]}),
        ("* hard memlock 64", {"MEMLOCK": [None, 64 * 1024]}),
        ("* hard cpu 2", {"CPU": [None, 120]}),
        ("* hard as unlimited\n* hard core 0", {"AS": [None, -1], "CORE": [None, 0]}),
        ("* hard nice -10", {"NICE": [None, 30]}),
        # The user counts before a group, a group before all; of two alike the later one.
        ("games hard nproc 1\n@games hard nproc 2\n* hard nproc 3", {"NPROC": [None, 1]}),
        ("* hard nproc 3\n@users hard nproc 2", {"NPROC": [None, 2]}),
        ("* hard nproc 3\n* hard nproc 4", {"NPROC": [None, 4]}),
        # Ranges: of groups only the first one is looked at, but for an exact one.
        (f"{ANA.pw_uid}:{ANA.pw_uid} - nproc 5", {"NPROC": [5, 5]}),
        (f"{ANA.pw_uid + 1}: - nproc 5", {}),
        (":99999 - nproc 5", {}),
        ("@:100 - nproc 5", {"NPROC": [5, 5]}),
        ("@99:101 - nproc 5", {}),
        # Exempt, or not for processes, or nothing that can be read.
        ("* - nproc 5\ngames -", {}),
        ("* - maxlogins 1\n% - nproc 5\nben - nproc 5", {}),
        ("* - nproc many\n* sideways nproc 5\n* - nproc\n*\n\n# x\n* - nofile -7", {}),
    ],
)
def test_the_nearest_line_counts(tmp_path: Path, conf: str, expected: Limits) -> None:
    assert limits(tmp_path, conf) == expected


def test_files_of_limits_d_come_after_in_the_order_of_their_names(tmp_path: Path) -> None:
    found = limits(tmp_path, "* - nproc 1\ngames - core 1", b="* - nproc 3\n* - core 3", a="* - nproc 2")
    assert found == {"NPROC": [3, 3], "CORE": [1024, 1024]}


def test_no_files_are_no_limits_and_what_cannot_be_read_is_no_conclusion(tmp_path: Path) -> None:
    assert limits_of("games", ANA.pw_uid, ANA.pw_gid, GROUPS, tmp_path) == {}
    (tmp_path / "limits.conf").mkdir()
    with pytest.raises(OSError, match=r"limits\.conf"):
        limits_of("games", ANA.pw_uid, ANA.pw_gid, GROUPS, tmp_path)


def test_unlimited_files_are_as_many_as_the_kernel_lets_a_process_have(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    assert limits(tmp_path, "* hard nofile unlimited") == {"NOFILE": [None, most]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts commands as other users")
def test_a_command_has_the_limits_of_its_user(tmp_path: Path) -> None:
    given = limits(tmp_path, "games soft nofile 111\ngames hard nofile 222\ngames - core 3\ngames hard stack 4096")
    user = {"uid": ANA.pw_uid, "gid": ANA.pw_gid, "groups": list(GROUPS), "limits": given}
    with tempfile.TemporaryFile() as output:
        asked = "id -u; ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hs; ulimit -Ss"
        pid = start_command(["/bin/bash", "-c", asked], {"PATH": "/bin"}, "/", output.fileno(), user=user)
        assert os.waitpid(pid, 0)[1] == 0
        output.seek(0)
        said = output.read().decode().split()
    assert said[:5] == [str(ANA.pw_uid), "111", "222", "3", "4096"]
    assert int(said[5]) <= 4096  # the soft limit does not stay above the hard one
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 222
