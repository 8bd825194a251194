"""The AFS comparison, and the scan for the job that wins it, kept up to date instead of repeated."""

from __future__ import annotations

from math import inf

from batuta.core.arrays import FloatArray

FAR = 1e290
"""Length of a job that makes no progress; jobs without GPUs stand beyond it, by rank."""

_FEW = 32
"""So many jobs are looked at one by one in less time than all of them at once."""


class Contest:
    """Finds the winner of a scan in row order in which each job challenges the best one so far.

    Of each job it knows three numbers. `first` and `last` are the gain of its next GPU relative to its speed
    without and with that GPU; `length` is the time left with the GPUs that it has. A job without GPUs has
    first ∞, last 1 and a length beyond all others, by remaining time. As last ≤ first, the paper's rule says
    that a later job i takes the lead from b when

        last_i > first_b   or   (length_i < length_b   and   first_i ≥ last_b).

    In terms of x = 1 / first, for steps of one GPU: i wins when x_i < x_b − 1, loses when x_i > x_b + 1, and
    in between the shorter job wins. So a ≻ b ≻ c ≻ a happens, no sort key exists, and the scan order is
    part of the rule. But only the winner ever changes. So the chain of leaders of the last scan is kept: what
    came before the winner still stands, and the scan goes on from there. One leader leaves the chain per GPU
    given, so in the long run one joins: about two searches for the next leader per GPU.

    Both ways to win need first_i ≥ last_b. Most jobs behind a leader have grown so much already that they
    fall short of that, so one array operation leaves only a few to be looked at.
    """

    __slots__ = ("_chain", "_first", "_last", "_length", "_seen", "_standings")

    def __init__(self, last: FloatArray, first: FloatArray, length: FloatArray) -> None:
        self._last, self._first, self._length = last, first, length
        # The same numbers once more, for one job at a time: a list answers faster than an array.
        self._standings = list(zip(last.tolist(), first.tolist(), length.tolist(), strict=True))
        self._chain: list[int] = []
        self._seen = 0

    def winner(self) -> int:
        """The job that leads at the end of the scan, or -1 when all have left."""
        chain, seen = self._chain, self._seen
        if not chain:
            present = self._length[seen:] < inf
            if not present.any():
                return -1
            seen += int(present.argmax()) + 1
            chain.append(seen - 1)
        while (challenger := self._next_leader(chain[-1], seen)) >= 0:
            seen = challenger + 1
            chain.append(challenger)
        self._seen = len(self._standings)
        return chain[-1]

    def _next_leader(self, leader: int, seen: int) -> int:
        """The first job from `seen` on that takes the lead, or -1."""
        standings = self._standings
        last, first, length = standings[leader]
        able = (self._first[seen:] >= last).nonzero()[0]
        for place in able[:_FEW].tolist():
            own_last, _, own_length = standings[seen + place]
            if own_length < length or own_last > first:
                return seen + int(place)
        if len(able) <= _FEW:
            return -1
        able = able[_FEW:] + seen
        leads = (self._length[able] < length) | (self._last[able] > first)
        nearest = int(leads.argmax())
        return int(able[nearest]) if leads[nearest] else -1

    def change(self, winner: int, standing: tuple[float, float, float]) -> None:
        """The winner was served and has another standing now: last, first, length."""
        self._standings[winner] = standing
        last, first, length = standing
        self._last[winner], self._first[winner], self._length[winner] = last, first, length
        self._seen = winner + 1
        chain = self._chain
        chain.pop()
        if chain:
            leader_last, leader_first, leader_length = self._standings[chain[-1]]
            if last <= leader_first and (length >= leader_length or first < leader_last):
                return
        chain.append(winner)

    def leave(self, winner: int) -> None:
        """The winner takes no further part."""
        self._chain.pop()
        self._standings[winner] = (-inf, -inf, inf)
        self._last[winner] = self._first[winner] = -inf
        self._length[winner] = inf
        self._seen = winner + 1
