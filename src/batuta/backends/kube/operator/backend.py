"""Carries commands out on a Kubernetes cluster, and tells the engine what becomes of jobs and nodes.

The informers run on an event loop of their own and put what they hear into the inbox. Everything else happens
here, in the engine's thread: `execute` notes what is wanted, `next_events` takes in news and drives each job
towards it. State that matters is in the API server, so that another operator can go on from any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.inbox import Changed, Inbox, Written
from batuta.backends.kube.operator.watched import ALWAYS, IF_SERVED, QUOTA
from batuta.backends.kube.progress.heard import Heard
from batuta.core.command import Command, Preempt, Stop
from batuta.core.event import Event
from batuta.engine.said import Said

_LONGEST_WAIT_S = 3600.0


class KubeBackend:
    """A backend of real pods. For the engine's thread; `wake` may be called by all."""

    def __init__(self, floor: Floor, said: Said, inbox: Inbox, clock: Callable[[], float]) -> None:
        """`said` is where the floor puts its events. `clock` never goes backwards."""
        self.floor = floor
        self._said = said
        self._inbox = inbox
        self._clock = clock

    def look_first(self) -> None:
        """Takes in what the informers have listed, before anything is decided."""
        now_s = self._clock()
        waiting = [message for message in self._inbox.take(0.0) if isinstance(message, Changed)]
        # Whoever is referred to comes before who refers to it.
        order = {kind: place for place, kind in enumerate((*IF_SERVED, *QUOTA, *ALWAYS))}
        for message in sorted(waiting, key=lambda message: order[message.kind]):
            self.floor.take(message, now_s)
        self.floor.finish_first_look(now_s)

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        """Notes what is wanted. It is begun with at the next call of `next_events`."""
        for command in commands:
            run = self.floor.runs.get(command.job)
            if run is None:
                continue
            run.is_ending = run.is_ending or isinstance(command, Stop)
            run.want(None if isinstance(command, Preempt | Stop) else command.placement)
            self.floor.touch(command.job)
        return ()

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        woken = False
        while True:
            now_s = self._clock()
            self.floor.drive(now_s)
            if self._said:
                return self._said.take(until_s)
            if until_s is not None and now_s >= until_s:
                return self._said.nothing_until(until_s)
            if woken:
                return []
            next_s = self.floor.next_s()
            woken = self._wait(next_s if until_s is None else min(next_s, until_s))

    def quiet(self) -> bool:
        return False

    def wake(self) -> None:
        """Makes `next_events` return soon. May be called by any thread."""
        self._inbox.put(None)

    def _wait(self, until_s: float) -> bool:
        """Waits for news, at most until a time; whether it was woken."""
        timeout_s = min(max(0.0, until_s - self._clock()), _LONGEST_WAIT_S)
        woken = False
        now_s = 0.0
        for message in self._inbox.take(timeout_s):
            now_s = now_s or self._clock()
            match message:
                case None:
                    woken = True
                case Changed():
                    self.floor.take(message, now_s)
                case Written():
                    self.floor.heard(message, now_s)
                case Heard():
                    self.floor.listened(message, now_s)
        return woken
