"""Looking ahead beside a server: in a process of its own, so that the engine keeps its time.

The World is sent in pieces: to write ten thousand jobs at once would hold up every other thread of the server
for a tenth of a second.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from batuta.backends.sim.foresight.arrivals import WINDOW_S
from batuta.backends.sim.foresight.forecast import Rulebook
from batuta.backends.sim.foresight.questions import Answer, Question
from batuta.bootstrap import LOOK_AGAIN_S, rules_for
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.policies.checked import PolicyAnswerError
from batuta.spec.problem import InputError

ANSWER_WITHIN_S = 180.0
_PIECE = 250
"""Jobs that are sent at once."""
_NICE = 5


class ForesightFailed(Exception):
    """There is no answer, and why."""


def book_of(policy: str) -> Rulebook:
    """Who decides in a future: the rules of a policy, looked at from time to time where time changes them."""
    tiered = hasattr(rules_for(policy).policy, "tiers")
    return Rulebook(lambda: rules_for(policy), Cadence(every_s=LOOK_AGAIN_S if tiered else None))


def answer(world: World, question: Question) -> Answer:
    """Answers here and now. The World stays as it is."""
    try:
        return question.answer(world, book_of)
    except PolicyAnswerError as error:
        raise InputError.of(str(error)) from error


class ForesightProcess:
    """Answers questions in another process, one after the other. It is started when the first one comes."""

    def __init__(self, within_s: float = ANSWER_WITHIN_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, world: World, question: Question) -> Answer:
        """Takes the World over: it must be a fork that nobody else has. Any thread may ask."""
        with self._lock:
            process = self._running()
            watchdog = threading.Timer(self._within_s, process.kill)
            watchdog.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                for piece in _pieces(world, question):
                    process.stdin.write(piece)
                process.stdin.flush()
                told = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._end()
                raise ForesightFailed("looking ahead took too long, or its process was ended") from error
            finally:
                watchdog.cancel()
        if isinstance(told, list):
            raise InputError(told)
        if isinstance(told, str):
            raise ForesightFailed(told)
        return told  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the process, whatever it does."""
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "batuta.bootstrap.foresight"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()


def _pieces(world: World, question: Question) -> Iterator[bytes]:
    """The question, and the World cut up. Between two pieces other threads get their turn."""
    jobs = world.jobs
    since_s = world.now_s - WINDOW_S
    world.past = {job: past for job, past in world.past.items() if past.job.submit_s >= since_s}
    described, placements, over = jobs.jobs, jobs.placements, list(world.past.items())
    jobs.jobs, jobs.placements, world.past = [], [], {}
    cuts = range(0, max(len(described), len(over)), _PIECE)
    yield pickle.dumps((question, len(cuts)))
    yield pickle.dumps(world)
    for at in cuts:
        time.sleep(0)
        own = slice(at, at + _PIECE)
        yield pickle.dumps((described[own], placements[own], over[own]))


def _read_world(stream: IO[bytes], pieces: int) -> World:
    world: World = pickle.load(stream)
    for _ in range(pieces):
        described, placements, over = pickle.load(stream)
        world.jobs.jobs += described
        world.jobs.placements += placements
        world.past.update(over)
    return world


def main() -> None:
    """Answers what comes on standard input until that ends."""
    stdin = sys.stdin.buffer
    # What a policy prints must not get among the answers.
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr
    with suppress(OSError):
        os.nice(_NICE)
    while True:
        try:
            question, pieces = pickle.load(stdin)
        except EOFError:
            return
        told: Any
        try:
            told = answer(_read_world(stdin, pieces), question)
        except InputError as error:
            told = list(error.problems)
        except Exception as error:
            told = f"looking ahead failed: {error!r}"
        stdout.write(pickle.dumps(told))
        stdout.flush()


if __name__ == "__main__":
    # Under its own name, so that what is pickled here is known there.
    from batuta.bootstrap.foresight import main as serve

    serve()
