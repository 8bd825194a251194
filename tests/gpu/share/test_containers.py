"""As in a container: /etc/ld.so.preload, limits of root's, and pids of its own."""

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from batuta.gpu.native_libraries import share_library, share_probe
from batuta.gpu.share.limits import LIMITS_PATH, ShareLimits, write_limits
from batuta.gpu.share.region import read_region
from tests.gpu.share.containers import DRIVER, HOLDER, MIB, container, end, limit, said
from tests.support.vgpu import VirtualNode


class Sealed:
    """Processes that have an /etc and pids of their own, as a container's have."""

    def __init__(self, node: VirtualNode, folder: Path) -> None:
        self.node, self.etc = node, folder / "etc"
        self.etc.mkdir()
        shutil.copy("/etc/ld.so.cache", self.etc)
        if subprocess.run(self.words(["true"]), capture_output=True, check=False).returncode != 0:
            pytest.skip("needs root and unshare: the rights to make namespaces")
        (self.etc / "ld.so.preload").write_text(f"{share_library()}\n")
        self.limits = ShareLimits("sealed", folder / "region", (limit(node, 100),))
        write_limits(self.etc / LIMITS_PATH.relative_to("/etc"), self.limits)

    def words(self, command: Sequence[str | Path]) -> list[str]:
        script = 'mount --bind "$0" /etc && exec "$@"'
        spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        return [*spaces, "sh", "-c", script, str(self.etc), *map(str, command)]


@pytest.fixture
def sealed(node: VirtualNode, tmp_path: Path) -> Sealed:
    return Sealed(node, tmp_path)


def test_every_program_of_the_container_is_limited_whatever_its_environment_says(sealed: Sealed):
    # given an environment that preloads nothing and names limits that allow more
    generous = container(sealed.node, limit(sealed.node, 5000), name="generous")
    env = {"LD_PRELOAD": "", "BATUTA_SHARE_LIMITS": str(generous.limits_path)}
    ask = [str(sealed.node.python), "-c", DRIVER + "start(); print(info(), allocate(101 * MIB)[0])"]
    # when programs run in the container, then root's limits hold, also for all entry points
    done = sealed.node.run(sealed.words(ask), **env)
    assert (done.returncode, done.stdout) == (0, "(100, 100) 2\n"), done.stderr
    table = sealed.node.run(sealed.words([share_probe(), "entries"]), **env)
    assert table.returncode == 0, table.stdout
    assert not generous.limits.region.exists()
    # and outside of it nobody notices
    assert sealed.node.run(ask, **env).stdout == "(15360, 15360) 0\n"


def test_a_container_that_is_started_again_begins_with_nothing(sealed: Sealed):
    # given a container that had memory when all of it was killed
    holder = sealed.node.start(sealed.words([sealed.node.python, "-c", HOLDER, "90"]))
    assert said(holder) == "0"
    (device,) = read_region(sealed.limits.region).devices
    assert device.used_bytes == 90 * MIB  # also seen from outside, where its pids mean nothing
    holder.send_signal(signal.SIGKILL)
    end(holder)
    # when it is started again, with other processes under the same pids, then the memory is free
    again = sealed.node.run(sealed.words([sealed.node.python, "-c", HOLDER, "90"]))
    assert again.stdout == "0\n", again.stderr
