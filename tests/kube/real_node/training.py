"""One training on a real node, seen from outside: the job, its checkpoint, and what its pods have said."""

from pathlib import Path
from typing import Any

import numpy as np

from batuta.backends.kube import names
from batuta.demo.training import Options, State, load_checkpoint
from batuta.demo.training import Training as Course
from tests.support.kube.api import Json
from tests.support.kube.control_plane import CommandFailed, ControlPlane, wait_until
from tests.support.kube.unified import Jobs, Submitted, manifest

_FOR_EVER = 1_000_000
_LAST_STEPS = 150
WITHIN_S = 180.0


class Training:
    """A UnifiedJob that trains until it is told where to end."""

    job: Submitted

    def __init__(self, cluster: ControlPlane, namespace: str, name: str, folder: Path) -> None:
        self._cluster, self._namespace = cluster, namespace
        self.name, self._folder = name, folder
        folder.mkdir()
        self._set_steps(_FOR_EVER)

    def start(self, job_type: str, pod: Json, **how: Any) -> None:
        """Submits it. `pod` is what a replica is, of `pods`; `how` as in `manifest`."""
        body = manifest(self.name, job_type, **how)
        spec = body["spec"]["replicaSpec"]["template"]["spec"]
        spec |= pod
        spec["volumes"] += [{"name": "checkpoints", "hostPath": {"path": str(self._folder)}}]
        self.job = Jobs(self._cluster, self._namespace).create(body)

    @property
    def step(self) -> int:
        """How far it is, by its checkpoint."""
        state = self._state()
        return state.step if state else 0

    def scale(self, replicas: int) -> None:
        """As a person does it."""
        job = f"unifiedjob/{self.name}"
        self._cluster.kubectl("scale", job, f"--replicas={replicas}", f"--namespace={self._namespace}")

    def trains_with(self, replicas: int) -> dict[str, str]:
        """Waits until so many replicas have saved steps that they made together; their uids by name."""
        found = self.job.runs_with(replicas, WITHIN_S)
        # The beginning of a life is said by rank 0, which is in replica 0.
        wait_until(lambda: self.lives()[-1:] == [replicas], f"{self.name} to train with {replicas}", WITHIN_S)
        begun = self.step
        wait_until(lambda: self.step > begun + 5, f"{self.name} to advance from step {begun}", WITHIN_S)
        return found

    def lives(self) -> list[int]:
        """How many workers each life had of those that the log of replica 0 tells of."""
        return [int(line.split()[0]) for line in self._first_words()]

    def log(self) -> str:
        """What all its pods have said; nothing while there is one that cannot have said anything."""
        words = ["logs", f"--selector={names.JOB_NAME}={self.name}", "--tail=-1"]
        try:
            return self._cluster.kubectl(*words, f"--namespace={self._namespace}")
        except CommandFailed:
            return ""

    def reports_more_than(self, step: int) -> int:
        """Waits until the status of the job tells of a later step; which one."""

        def look() -> int:
            metrics = self.job.status.get("trainerStatus", {}).get("metrics", ())
            found = next((int(float(one["value"])) for one in metrics if one["name"] == "step"), 0)
            return found if found > step else 0

        return wait_until(look, f"{self.name} to report more than step {step}", WITHIN_S)

    def shows_what_is_left(self) -> None:
        """Waits until the status says how much is done and how long the rest takes."""

        def look() -> bool:
            status = self.job.status
            left_s = status.get("trainerStatus", {}).get("estimatedRemainingSeconds")
            return bool(status.get("progress", "").endswith("%") and status.get("eta") and left_s)

        wait_until(look, f"{self.name} to show what is left", WITHIN_S)

    def went_on_from(self) -> int:
        """Waits until its present life has begun; from which step."""
        words = wait_until(self._first_words, f"{self.name} to begin", WITHIN_S)
        return int(words[0].partition(" from step ")[2].split()[0])

    def _first_words(self) -> list[str]:
        return [line for line in self.log().splitlines() if " workers, " in line]

    def ends_at(self, steps: int) -> None:
        """Its next life trains up to this step."""
        self._set_steps(steps)

    def ends_soon(self) -> None:
        """Its next life trains some more steps and is done."""
        self._set_steps(self.step + _LAST_STEPS)

    def is_as_if_uninterrupted(self) -> bool:
        """Whether its weights are those of one worker that does the same steps at a stretch."""
        mine, options = self._state(), Options()
        assert mine is not None
        course = Course(options.seed, options.batch)
        state = course.first_state()
        while state.step < mine.step:
            course.advance(state, course.sums(state, course.part_of_batch(state.step, 0, 1)))
        return np.allclose(mine.weights, state.weights)

    def _state(self) -> State | None:
        options = Options()
        return load_checkpoint(self._folder, options.seed, options.batch)

    def _set_steps(self, steps: int) -> None:
        (self._folder / "steps").write_text(f"{steps}\n")
