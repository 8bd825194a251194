"""`batuta` with the options for a cluster: run in this process, with what it prints and its exit code."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from batuta.cli.main import run
from tests.support.kube.control_plane import wait_until
from tests.support.kube.unified import manifest

TASK = """\
name: train
num_nodes: 2
resources: {accelerators: 1, cpus: 1, image_id: docker:train}
elastic: {min_nodes: 1, max_nodes: 4, kind: torch-elastic, grace: 1s, restartable: true}
run: torchrun train.py
"""


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


@dataclass(frozen=True)
class Batuta:
    """The command line of one person in one namespace."""

    kubeconfig: Path
    namespace: str = ""

    def __call__(self, *words: str) -> Said:
        where = ["--kubeconfig", str(self.kubeconfig), *(["-n", self.namespace] if self.namespace else [])]
        return batuta(*where, *words)

    def launch(self, folder: Path, name: str = "train", task: str = TASK, *words: str) -> str:
        """Submits a task and does not wait for it; its id."""
        (folder / "task.yaml").write_text(task)
        said = self("launch", str(folder / "task.yaml"), "-d", "-n", name, *words)
        assert said.code == 0, said
        return f"{self.namespace}/{name}"

    def launch_unified(self, folder: Path, name: str, *words: str, **how: Any) -> Said:
        """Submits a UnifiedJob; `how` is what `manifest` takes."""
        (folder / "job.yaml").write_text(yaml.safe_dump(manifest(name, **how)))
        return self("launch", str(folder / "job.yaml"), *words)

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self("status", name, "-o", "json").json()
        return found

    def waits_for(self, name: str, state: str, gpus: int | None = None) -> dict[str, Any]:
        """The job once it is in this state, with so many GPUs."""

        def look() -> dict[str, Any] | None:
            job = self.job(name)
            fits = job["state"] == state and gpus in (None, job["gpus"]["now"])
            return job if fits else None

        # Each look is a whole run of the program, which takes from the others what they need to get on.
        found = wait_until(look, f"{name} to be {state} with {gpus} GPUs", pause_s=0.3)
        assert found is not None
        return found


def batuta(*words: str) -> Said:
    """Runs `batuta` with these words and nothing else."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with patch.object(sys, "argv", ["batuta", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            run()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(bool(left.code))
    return Said(code, out.getvalue(), err.getvalue())
