"""The real API over jobs that only pretend to work: python -m tests.support.api_server --port 7077.

Eight virtual GPUs, a handful of elastic jobs that report progress, write logs, grow, shrink, fail and end,
and new ones as long as it runs. For working on the command line and the dashboard.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from batuta.api.app import ApiServer, login_path
from batuta.api.dependencies import STATIC
from batuta.api.operations import Operations, Submission
from batuta.core import event as ev
from batuta.core.job import JobState, Progress
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from tests.support.live_service import NODES, LiveService, live_service
from tests.support.quotas import short

APPLICATIONS = ("resnet", "bert", "gpt-small", "unet", "whisper", "tabular")
QUOTA = short(("default", {"*": 6}), ("research", {"*": 2}), cohort="all")
TASK = """
name: {name}
num_nodes: {size}
resources:
  accelerators: virtual:1
  labels: {{kueue.x-k8s.io/queue-name: {queue}}}
envs: {{MODEL: {name}}}
secrets: {{HF_TOKEN: hush}}
run: torchrun train.py --steps {steps}
elastic: {{min_nodes: {low}, max_nodes: {high}, checkpoint: on-signal}}
"""


class Player:
    """Plays the part of the training scripts."""

    def __init__(self, live: LiveService, seed: int, speed: float, arrivals_s: float) -> None:
        self._live = live
        self._chance = random.Random(seed)
        self._speed = speed
        self._arrivals_s = arrivals_s
        self._step: dict[str, float] = {}
        self._total: dict[str, int] = {}

    def run(self) -> None:
        next_s, last_s = time.time() + self._arrivals_s, time.time()
        while self._live.service.running:
            time.sleep(0.5)
            now_s = time.time()
            for job, placement in list(self._live.backend.running.items()):
                self._advance(job, placement.size, now_s, now_s - last_s)
            last_s = now_s
            if now_s >= next_s:
                next_s = now_s + self._chance.expovariate(1 / self._arrivals_s)
                self.submit(self._chance.choice(("ana", "ben", "eva")))

    def submit(self, user: str) -> None:
        size = self._chance.choice((1, 1, 2, 4))
        steps = self._chance.choice((200, 400, 800, 1600))
        text = TASK.format(
            name=f"{self._chance.choice(APPLICATIONS)}-{self._chance.randrange(100)}",
            queue=self._chance.choice(("default", "default", "research")),
            size=size,
            low=max(1, size // 2),
            high=max(size, self._chance.choice((1, 4, 8))),
            steps=steps,
        )
        task = parse_task(text)
        operations: Operations = self._live.app.state.batuta.operations
        submission = Submission(task, task_to_json(task), user)
        self._live.service.ask(operations.submit(submission))
        self._total[submission.job] = steps

    def _advance(self, job: str, gpus: int, now_s: float, elapsed_s: float) -> None:
        total = self._total.setdefault(job, 400)
        rate = 5.0 * self._speed * gpus**0.8
        step = self._step[job] = min(total, self._step.get(job, 0.0) + rate * elapsed_s)
        loss = 2.5 * math.exp(-3 * step / total) + self._chance.uniform(0, 0.1)
        live, left = self._live, total - step
        progress = Progress(step / total, int(step), total, step / 100, round(loss, 4), 1 / rate, 32 * rate, 100 / rate)
        live.backend.progress(job, left / (5.0 * self._speed), progress)
        report = {"time": now_s, "step": int(step), "total_steps": total, "samples": 32 * step, "loss": loss}
        live.files.write_progress(job, json.dumps(report | {"lr": 0.1 * left / total}) + "\n")
        for rank in range(gpus):
            line = f"[{time.strftime('%H:%M:%S')}] rank {rank} of {gpus}: step {int(step)}/{total}"
            live.files.write_log(job, f"{line} loss {loss:.4f}\n", rank)
        if self._chance.random() < 0.002:
            live.backend.interrupt(job, wait_s=5.0)
        elif step >= total:
            failed = self._chance.random() < 0.1
            live.store.results.stage(job, json.dumps({"loss": round(loss, 4)}))
            if failed:
                live.backend.end(job, JobState.FAILED, 1, "the script raised ValueError")
            else:
                live.backend.end(job)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=7077)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--home", type=Path, help="keep the state here")
    parser.add_argument("--jobs", type=int, default=6, help="jobs at the start")
    parser.add_argument("--arrivals", type=float, default=15.0, help="seconds between new jobs")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--static", type=Path, help="the built dashboard")
    options = parser.parse_args()
    events = [ev.QuotaSet(0.0, QUOTA)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.home or Path(temporary)
        with live_service(folder, nodes=NODES, events=events, static=options.static or STATIC) as live:
            player = Player(live, options.seed, options.speed, options.arrivals)
            for k in range(options.jobs):
                player.submit(("ana", "ben", "eva")[k % 3])
            threading.Thread(target=player.run, daemon=True).start()
            url = f"http://{options.host}:{options.port}"
            say(f"url:   {url}")
            say(f"login: {url}{login_path(live.app, live.hash_of('ana'))}  (once, within a minute)")
            for user, token in live.tokens.items():
                say(f"token: {token}  ({user})")
            with suppress(KeyboardInterrupt):
                ApiServer(live.app, options.host, options.port).run()


if __name__ == "__main__":
    main()
