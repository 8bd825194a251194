"""A profiler that looks by itself: a thread that samples at each interval, and answers at any time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from batuta.gpu.profiler.profiler import Profiler
from batuta.gpu.profiler.progress import StepReport
from batuta.gpu.profiler.usage import NodeUsage

_log = logging.getLogger("batuta.agent")


class Sampling:
    """Runs a profiler for as long as the `with` lasts. Safe to be asked from any thread."""

    def __init__(self, profiler: Profiler, after_sample: Callable[[], None] | None = None) -> None:
        """`after_sample` is called after every look that worked, in the thread."""
        self._profiler = profiler
        self._after_sample = after_sample
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batuta-profiler", daemon=True)
        self.samples = 0
        self.failures = 0

    def __enter__(self) -> Sampling:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def usage(self) -> NodeUsage:
        """How things are now."""
        with self._lock:
            return self._profiler.usage()

    def told(self, job: str, report: StepReport, namespace: str = "") -> None:
        """Takes in what a job says of its progress."""
        with self._lock:
            self._profiler.told(job, report, namespace)

    def _run(self) -> None:
        interval_s = self._profiler.timing.interval_s
        next_s = time.monotonic()
        while not self._stop.is_set():
            self._sample()
            next_s += interval_s
            # After a long pause (a machine that slept) nothing is made up for.
            next_s = max(next_s, time.monotonic())
            self._stop.wait(next_s - time.monotonic())

    def _sample(self) -> None:
        try:
            with self._lock:
                self._profiler.sample()
            self.samples += 1
            if self._after_sample is not None:
                self._after_sample()
        except Exception:
            # A driver that is being replaced fails for a while; who looks at nodes has to outlive that.
            self.failures += 1
            if self.failures == 1 or self.failures % 600 == 0:
                _log.exception("cannot look at the GPUs (%d times)", self.failures)
