"""Forecasts for a server, computed in a process of their own, so that they do not delay the engine.

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

from batuta.backends.sim.forecast.forecast import ProfileSource
from batuta.backends.sim.forecast.queries import Query, QueryResult
from batuta.backends.sim.forecast.sampling import WINDOW_S
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import find_policy, profile_for
from batuta.policies.checked import PolicyAnswerError
from batuta.spec.problem import InputError

ANSWER_WITHIN_S = 180.0
_PIECE = 250
_NICE = 5


class ForecastFailed(Exception):
    """There is no answer, and why."""


def book_of(policy: str) -> ProfileSource:
    """Who decides in a future: the rules of a policy, looked at from time to time where time changes them."""
    traits = find_policy(policy).traits
    # Only queue levels change the order by time alone within a forecast.
    every_s = traits.decide_every_s if traits.tiered else None
    return ProfileSource(lambda: profile_for(policy), Cadence(every_s=every_s))


def answer(world: World, question: Query) -> QueryResult:
    """Answers here and now. The World stays as it is."""
    try:
        return question.answer(world, book_of)
    except PolicyAnswerError as error:
        raise InputError.of(str(error)) from error


class ForecastProcess:
    """Answers questions in another process, one after the other. It is started when the first one comes."""

    def __init__(self, within_s: float = ANSWER_WITHIN_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, world: World, question: Query) -> QueryResult:
        """Takes the World over: it must be a fork that no other code uses. Any thread may ask."""
        with self._lock:
            try:
                process = self._running()
                watchdog = threading.Timer(self._within_s, process.kill)
                watchdog.start()
            except (OSError, RuntimeError) as error:
                raise ForecastFailed(f"no process or thread can be started to look ahead: {error}") from error
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                for piece in _pieces(world, question):
                    process.stdin.write(piece)
                process.stdin.flush()
                told = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._end()
                raise ForecastFailed("looking ahead took too long, or its process was ended") from error
            finally:
                watchdog.cancel()
        if isinstance(told, list):
            raise InputError(told)
        if isinstance(told, str):
            raise ForecastFailed(told)
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
                [sys.executable, "-m", "batuta.bootstrap.forecast_process"],
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


def _pieces(world: World, question: Query) -> Iterator[bytes]:
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
    from batuta.bootstrap.forecast_process import main as serve

    serve()
