"""A job of several ranks that keep step, some of which are slow because of the node they are on."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cli_server import Cli
from tests.support.server_process import PlainServers

SCRIPT = """
import os, sys, time
import numpy as np
from batuta import sdk
from batuta.demo.process_group import join_group, worker_from_env

work_s, total, mode, rank_to_fall_ill = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
worker = worker_from_env(os.environ)
saved = os.path.join(os.environ["BATUTA_CHECKPOINT_DIR"], "step")
ill = os.path.join(os.environ["BATUTA_CHECKPOINT_DIR"], "ill")
mine = os.environ["SKYPILOT_NODE_IPS"].split()[worker.rank]
step = int(open(saved).read()) if os.path.exists(saved) else 0

def is_ill():
    return os.path.exists(ill) and open(ill).read() == mine

with join_group(worker, 120.0) as group:
    if worker.rank == rank_to_fall_ill and not os.path.exists(ill):
        with open(ill + ".draft", "w") as file:
            file.write(mine)
        os.rename(ill + ".draft", ill)  # whoever is on this node is ill from now on
    while step < total:
        time.sleep(work_s * (3 if mode == "slow" and is_ill() else 1))
        wish = int(worker.rank == 0 and sdk.checkpoint_requested())
        with sdk.waiting():
            _, note = group.sum(np.zeros(1), wish)
        step += 1
        if worker.rank == 0 and (note or step % 10 == 0):
            with open(saved + ".draft", "w") as file:
                file.write(str(step))
            os.rename(saved + ".draft", saved)
            if note:
                sdk.checkpointed(saved, step=step)
        if mode != "silent":
            sdk.report(step=step, total_steps=total)
"""


def launch(cli: Cli, mode: str, *, ill_rank: int = 0, nodes: int = 4, **labels: str) -> str:
    """A job with one replica on each of some nodes; in mode `slow` the node of `ill_rank` becomes slow.

    `labels` of Batuta: `hang_after="8s"` is `batuta.dev/hang-after: 8s`.
    """
    script, task = cli.cwd / "train.py", cli.cwd / "task.yaml"
    script.write_text(SCRIPT)
    shown = {f"batuta.dev/{name.replace('_', '-')}": value for name, value in labels.items()}
    task.write_text(
        f"""
name: held-up
num_nodes: {nodes}
resources: {{accelerators: 1, labels: {json.dumps(shown)}}}
elastic: {{min_nodes: {nodes}, max_nodes: {nodes}, checkpoint: on-signal, grace: 5s}}
run: {sys.executable} {script} 0.03 50000 {mode} {ill_rank}
"""
    )
    return cli.launch(str(task))


def nodes_of(cli: Cli, job: str) -> list[str]:
    """Where a job is, by rank."""
    return [span["node"] for span in cli.json("status", job)["placement"]]


def held_up(cli: Cli, job: str) -> list[dict[str, Any]]:
    """What was told of its ranks so far."""
    lines = cli.ok("events", "--job", job, "--tail", "1000", "--type", "JobHeldUp", "-o", "json")
    return [json.loads(line) for line in lines.splitlines()]


def story(cli: Cli, job: str) -> list[str]:
    return [chapter["sentence"] for chapter in cli.json("explain", job)["story"]]


@contextmanager
def small_nodes(folder: Path, count: int, *words: str) -> Iterator[Cli]:
    """A server with so many nodes of one GPU each."""
    cli = Cli(folder / "home", folder)
    with PlainServers(folder) as servers:
        servers.start(cli.home, "--nodes", str(count), "--gpus", "1", *words).wait_ready()
        try:
            yield cli
        finally:
            cli.run("cancel", "--all", "-y")
            done = cli.run("down")
            assert done.returncode == 0, done.stderr
