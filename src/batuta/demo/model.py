"""What is learned: a small network, made-up data, and the order in which the data comes.

Everything follows from the seed and the step, nothing from the number of workers: a worker takes its part of
the batch, and the sums over all parts are what one worker alone would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from batuta.demo.options import SAMPLES

Vector: TypeAlias = NDArray[np.float64]

INPUTS, HIDDEN = 16, 32
_RATE, _MOMENTUM = 0.05, 0.9
_SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
WEIGHTS = sum(int(np.prod(shape)) for shape in _SHAPES)
_DATA, _FIRST_WEIGHTS, _ORDER = range(3)
"""What is drawn from a seed, each from a stream of its own."""


@dataclass(slots=True)
class State:
    """All that a training is at a moment; nothing else has to be kept."""

    weights: Vector
    velocity: Vector
    step: int = 0
    """Steps done."""
    loss: float = float("nan")
    """Of the last step's batch, before its update."""

    def pack(self) -> Vector:
        """The same as one vector, to be sent to the other workers."""
        return np.concatenate([self.weights, self.velocity, [float(self.step), self.loss]])

    @staticmethod
    def unpack(packed: Vector) -> State:
        weights, velocity = packed[:WEIGHTS].copy(), packed[WEIGHTS : 2 * WEIGHTS].copy()
        return State(weights, velocity, int(packed[-2]), float(packed[-1]))


class Training:
    """The data and the rules of one training; what changes is in a State."""

    def __init__(self, seed: int, batch: int) -> None:
        self.seed, self.batch = seed, batch
        draw = np.random.default_rng([seed, _DATA])
        self._inputs = draw.normal(size=(SAMPLES, INPUTS))
        hidden_rule = np.tanh(self._inputs @ draw.normal(scale=INPUTS**-0.5, size=(INPUTS, 8)))
        self._wanted = hidden_rule @ draw.normal(size=(8, 1)) + draw.normal(scale=0.05, size=(SAMPLES, 1))
        self._epoch, self._order = -1, np.arange(SAMPLES)

    def first_state(self) -> State:
        draw = np.random.default_rng([self.seed, _FIRST_WEIGHTS])
        parts = [draw.normal(scale=shape[0] ** -0.5, size=shape) for shape in _SHAPES]
        for bias in (1, 3):
            parts[bias][:] = 0.0
        weights = np.concatenate([part.ravel() for part in parts])
        return State(weights, np.zeros_like(weights))

    def part_of_batch(self, step: int, rank: int, workers: int) -> NDArray[np.intp]:
        """The samples of a step that one of so many workers takes. Together they are the batch, in order."""
        epoch, place = divmod(step, SAMPLES // self.batch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(SAMPLES)
            self._epoch = epoch
        begin = place * self.batch
        first, last = self.batch * rank // workers, self.batch * (rank + 1) // workers
        return self._order[begin + first : begin + last]

    def sums(self, state: State, samples: NDArray[np.intp]) -> Vector:
        """The gradient summed over these samples, and the sum of their losses as the last value."""
        inputs, wanted = self._inputs[samples], self._wanted[samples]
        first, first_bias, second, second_bias = _views(state.weights)
        hidden = np.tanh(inputs @ first + first_bias)
        error = hidden @ second + second_bias - wanted
        back = (error @ second.T) * (1.0 - hidden**2)
        gradients = (inputs.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        total = 0.5 * float((error**2).sum())
        return np.concatenate([*(part.ravel() for part in gradients), [total]])

    def advance(self, state: State, sums: Vector) -> None:
        """One step of SGD with momentum, from the sums over the whole batch."""
        state.velocity *= _MOMENTUM
        state.velocity -= _RATE * sums[:-1] / self.batch
        state.weights += state.velocity
        state.loss = float(sums[-1]) / self.batch
        state.step += 1

    def loss_of_all(self, state: State) -> float:
        """The mean loss over all data."""
        return float(self.sums(state, np.arange(SAMPLES))[-1]) / SAMPLES


def _views(weights: Vector) -> list[Vector]:
    return list(_split(weights))


def _split(weights: Vector) -> Iterator[Vector]:
    begin = 0
    for shape in _SHAPES:
        end = begin + int(np.prod(shape))
        yield weights[begin:end].reshape(shape)
        begin = end
