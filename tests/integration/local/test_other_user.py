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
    from batuta.backends.local.leftovers import find_leftovers
    from batuta.backends.local.processes import ReplicaSpec, bury, launch, observe, request_checkpoint, stop
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
        state = bury(run_dir)
        assert find_leftovers(run_id) == []
        print(state.why, state.exit_code, state.signal, state.survivors)
"""


def test_whole_course_as_nobody(tmp_path: Path):
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
        result = subprocess.run(
            [*demote, python, "-B", "-c", textwrap.dedent(COURSE), str(home)],
            env={"PYTHONPATH": str(REPO / "src"), "PATH": os.defpath},
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["stopped None 15 ()", "killed None None ()", "exited 3 None ()"]
