"""Local mode needs no privilege."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
NOBODY = "65534"

COURSE = """
    import os, sys, time
    from pathlib import Path
    from batuta.backends.local.processes import clean_up, find_leftovers, launch, observe
    from batuta.backends.local.processes import request_checkpoint, stop
    from batuta.backends.local.runner_protocol import ReplicaSpec
    assert os.geteuid() != 0

    def until(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, observe(run_dir)
            time.sleep(0.01)

    home, env = Path(sys.argv[1]), {"PATH": os.defpath}
    for name, script in {
        "stopped": "setsid sleep 1000 & trap '' USR1; echo ready; sleep 1000",
        "killed": "sleep 1000 & setsid sleep 1000 & echo ready; wait",
        "exited": "setsid sleep 1000 & echo ready; exit 3",
    }.items():
        run_dir = home / name
        run_id = f"nobody-{os.getpid()}-{name}"
        spec = ReplicaSpec(run_id=run_id, run=script, cwd=home, log=run_dir / "log", env=env)
        replica = launch(run_dir, spec)
        until(lambda: (run_dir / "log").exists() and "ready" in (run_dir / "log").read_text())
        if name == "stopped":
            request_checkpoint(replica)
            stop(replica)
        elif name == "killed":
            os.kill(replica.pid, 9)
        until(lambda: not replica.is_running)
        state = clean_up(run_dir)
        assert find_leftovers(run_id) == []
        print(state.why, state.exit_code, state.signal, state.survivors)
"""


MOUNTS = """
    import os, subprocess, sys, time
    from pathlib import Path
    from batuta.backends.local import runner
    from batuta.backends.local.processes import clean_up, launch
    from batuta.backends.local.runner_protocol import BindMount, ReplicaSpec
    probe = [sys.executable, "-I", "-S", runner.__file__, runner.CAN_MOUNT]
    if subprocess.run(probe, check=False).returncode:
        sys.exit(77)
    home = Path(sys.argv[1])
    (home / "data").mkdir()
    (home / "data" / "x").write_text("inside")
    (home / "locks").mkdir()
    at_root, at_home = f"/batuta-nobody-{os.getpid()}/data", home / "seen" / "x"
    run_dir = home / "run"
    launch(run_dir, ReplicaSpec(
        run_id=f"nobody-{os.getpid()}",
        run=f"cat {at_root}/x {at_home}; echo; id -u; echo own >{home}/kept; ls -d /usr /proc/self /tmp",
        cwd=home,
        log=run_dir / "log",
        env={"PATH": os.defpath},
        view=[BindMount(str(home / "data"), at_root), BindMount(str(home / "data" / "x"), str(at_home))],
        view_locks=home / "locks",
    ))
    end = time.monotonic() + 60
    while clean_up(run_dir).phase.is_alive and time.monotonic() < end:
        time.sleep(0.01)
    print((run_dir / "log").read_text(), end="")
    print((home / "kept").read_text(), at_home.parent.exists(), Path(at_root).parent.exists())
    print(os.listdir(home / "locks"))
"""


FORKS = """
    import os, sys, time
    from pathlib import Path
    from batuta.backends.local.processes import clean_up, launch
    from batuta.backends.local.runner_protocol import ReplicaSpec
    home = Path(sys.argv[1])
    run_dir = home / "run"
    limits = {"processes": 20, "memory_bytes": 2**40, "all_memory_bytes": 2**40, "cgroup": None}
    script = "for n in $(seq 200); do sleep 60 & done; wait"
    env = {"PATH": os.defpath}
    launch(run_dir, ReplicaSpec(
        run_id=f"nobody-{os.getpid()}", run=script, cwd=home, log=run_dir / "log", env=env, limits=limits
    ))
    end = time.monotonic() + 60
    while clean_up(run_dir).phase.is_alive and time.monotonic() < end:
        time.sleep(0.01)
    print(clean_up(run_dir).why, "fork: " in (run_dir / "log").read_text())
"""


def as_nobody(script: str) -> subprocess.CompletedProcess[str]:
    """A script of a user without any privilege, with a folder of its own."""
    if os.geteuid() != 0 or not (setpriv := shutil.which("setpriv")):
        pytest.skip("another user is tried by root with setpriv; all other tests ran as this user anyway")
    demote = [setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    home = Path("/tmp") / f"batuta-nobody-{os.getpid()}"
    home.mkdir()
    try:
        os.chown(home, int(NOBODY), int(NOBODY))
        for python in (sys.executable, "/usr/bin/python3"):
            # By a shell: setpriv itself still has root's rights when it looks for the program.
            probe = [
                *demote,
                "/bin/sh",
                "-c",
                f"{python} -c 'import sys; sys.exit(sys.version_info < (3, 11))'",
            ]
            if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
                break
        else:
            pytest.skip("nobody may not run any Python >= 3.11 here")
        return subprocess.run(
            [*demote, python, "-B", "-c", textwrap.dedent(script), str(home)],
            env={"PYTHONPATH": str(REPO / "src"), "PATH": os.defpath},
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home)


def test_whole_course_as_nobody():
    result = as_nobody(COURSE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["stopped None 15 ()", "killed None None ()", "exited 3 None ()"]


def test_mounts_of_nobody_are_in_a_view_of_its_own():
    result = as_nobody(MOUNTS)
    if result.returncode == 77:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stderr
    first = ["insideinside", NOBODY, "/proc/self", "/tmp", "/usr", "own", " False False", "[]"]
    assert result.stdout.splitlines() == first


def test_processes_of_a_user_are_bounded_by_the_kernel_too():
    done = as_nobody(FORKS)
    assert (done.returncode, done.stdout) == (0, "process-limit True\n"), done.stderr
