"""A job that hangs is restarted, without the node that is to blame; one that never reported is left alone."""

import os
import signal
from pathlib import Path

from tests.support.cli_server import Cli
from tests.support.held_up_jobs import held_up, launch, nodes_of, small_nodes, story


def pids_of(cli: Cli, job: str, rank: int) -> list[int]:
    """The processes of the training script of a rank, by the marks in their environment."""
    wanted = {f"BATUTA_JOB_ID={job}".encode(), f"RANK={rank}".encode()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = set((folder / "environ").read_bytes().split(b"\0"))
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted <= environ and str(cli.cwd).encode() in command:
            found.append(int(folder.name))
    return found


def test_a_rank_that_stops_is_found_and_the_job_restarted_without_its_node(tmp_path: Path):
    with small_nodes(tmp_path, 6, "--hang-after", "8s") as cli:
        silent = launch(cli, "silent", nodes=1, hang_after="1s")
        cli.wait(silent, "RUNNING")
        job = launch(cli, "well")
        cli.until(lambda: cli.json("status", job), lambda now: ((now["progress"] or {}).get("step") or 0) > 20)
        before = nodes_of(cli, job)
        stopped = pids_of(cli, job, rank=1)
        assert stopped
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        (told, *_) = cli.until(lambda: held_up(cli, job), bool)
        assert (told["reason"], told["ranks"]) == ("HANG", [1])
        assert (told["nodes"], told["avoid"]) == ([before[1]], [before[1]])
        assert dict(told["evidence"])["silent_s"] >= 8
        cli.until(lambda: nodes_of(cli, job), lambda nodes: len(nodes) == 4 and before[1] not in nodes)
        cli.wait(job, "RUNNING")
        assert any("hangs: it has reported nothing" in one for one in story(cli, job))
        # The one that never said anything was left alone all the while.
        assert held_up(cli, silent) == []
        assert cli.json("status", silent)["state"] == "RUNNING"
