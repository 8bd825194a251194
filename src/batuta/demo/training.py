"""One training of the demo: its options, the network and its data, checkpoints, and the device of its steps.

Everything follows from the seed and the step, nothing from the number of workers: a worker takes its part of
the batch, and the sums over all parts are what one worker alone would have had.

The device uses CUDA's driver API through ctypes, so that a worker starts fast. Its kernels compute nothing
and take as long as their name says on a virtual GPU. On a real GPU they would take no time at all: there,
and without a GPU, a step sleeps.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SAMPLES = 2048  # how many examples there are to learn from; an epoch sees each of them once


@dataclass(frozen=True, slots=True)
class Options:
    """One training: what decides its result, then what decides its pace."""

    steps: int = 200
    batch: int = 64  # samples of a step over all workers, so that a training gives the same losses at every size
    seed: int = 0
    work_ms: float = 100.0
    comm_ms: float = 2.0
    checkpoint_every: int = 0
    timeout_s: float = 60.0

    def step_s(self, gpus: int) -> float:
        """How long a step takes: the work is divided among the GPUs, each further one adds communication."""
        return (self.work_ms / gpus + self.comm_ms * (gpus - 1)) / 1000.0

    @property
    def steps_per_epoch(self) -> int:
        return SAMPLES // self.batch


_HELP = {
    "steps": "steps of the whole training",
    "batch": "samples of a step, of all workers together",
    "seed": "of the data, its order and the first weights",
    "work_ms": "milliseconds that a step takes on one GPU",
    "comm_ms": "milliseconds that each further GPU adds to a step",
    "checkpoint_every": "steps between checkpoints; 0: only when asked, and at the end",
    "timeout_s": "seconds to wait for other workers",
}


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line; exits with 2 and a sentence when they make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m batuta.demo.trainer",
        description="Trains a small network by data-parallel SGD, with as many workers as WORLD_SIZE says. "
        "It resumes from $BATUTA_CHECKPOINT_DIR with any number of them, and the losses stay the same.",
    )
    for field in fields(Options):
        kind, text = type(field.default), f"{_HELP[field.name]} (default: {field.default:g})"
        parser.add_argument(
            _flag(field.name), dest=field.name, type=kind, default=field.default, metavar="N", help=text
        )
    found = Options(**vars(parser.parse_args(arguments)))
    for name, value in asdict(found).items():
        if not 0 <= value < math.inf:
            parser.error(f"{_flag(name)} must be a number from 0, found {value:g}")
    if not 1 <= found.batch <= SAMPLES:
        parser.error(f"--batch must be within 1..{SAMPLES}, found {found.batch}")
    return found


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


Vector: TypeAlias = NDArray[np.float64]

INPUTS, HIDDEN = 16, 32
_RATE, _MOMENTUM = 0.05, 0.9
_SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
WEIGHTS = sum(int(np.prod(shape)) for shape in _SHAPES)
_DATA, _FIRST_WEIGHTS, _ORDER = range(3)  # what is drawn from a seed, each from a stream of its own


@dataclass(slots=True)
class State:
    """The whole state of a training; a checkpoint holds nothing else."""

    weights: Vector
    velocity: Vector
    step: int = 0
    loss: float = float("nan")  # of the last step's batch, before its update

    def pack(self) -> Vector:
        """The state as one vector, to be sent to the other workers."""
        return np.concatenate([self.weights, self.velocity, [float(self.step), self.loss]])

    @staticmethod
    def unpack(packed: Vector) -> State:
        weights, velocity = packed[:WEIGHTS].copy(), packed[WEIGHTS : 2 * WEIGHTS].copy()
        return State(weights, velocity, int(packed[-2]), float(packed[-1]))


class Training:
    """The data and the hyperparameters of one training; what changes is in a State."""

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
        first, first_bias, second, second_bias = _layers(state.weights)
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
        return float(self.sums(state, np.arange(SAMPLES))[-1]) / SAMPLES


def _layers(weights: Vector) -> Iterator[Vector]:
    begin = 0
    for shape in _SHAPES:
        end = begin + int(np.prod(shape))
        yield weights[begin:end].reshape(shape)
        begin = end


CHECKPOINT_FILE = "trainer.npz"


class BadCheckpoint(Exception):
    """A checkpoint that cannot be resumed from. The message names the file and what to do."""


def save_checkpoint(folder: Path, state: State, seed: int, batch: int) -> Path:
    """Replaces the folder's checkpoint. Returns its path once it is on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path, draft = folder / CHECKPOINT_FILE, folder / f".{CHECKPOINT_FILE}.new"
    with draft.open("wb") as file:
        np.savez(file, **asdict(state), seed=seed, batch=batch)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # the rename
    finally:
        os.close(handle)
    return path


def load_checkpoint(folder: Path, seed: int, batch: int) -> State | None:
    """The state in the folder's checkpoint; None when there is none yet.

    Another seed or batch would be another training: going on from here would give neither of the two.
    """
    path = folder / CHECKPOINT_FILE
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            found_seed, found_batch = int(kept["seed"]), int(kept["batch"])
            state = State(kept["weights"], kept["velocity"], int(kept["step"]), float(kept["loss"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}; remove it to start afresh") from None
    if (found_seed, found_batch) != (seed, batch):
        raise BadCheckpoint(
            f"{path} is of another training: seed {found_seed} and batch {found_batch}, "
            f"asked for are {seed} and {batch}; remove it to start afresh"
        )
    if state.weights.shape != (WEIGHTS,) or state.velocity.shape != (WEIGHTS,):
        raise BadCheckpoint(f"{path} is of another model; remove it to start afresh")
    return state


_KERNEL = b"step_vgpu_1ms"
_KERNEL_S = 0.001
_IMAGE = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry " + _KERNEL + b"() { ret; }\n\0"
_HELD_BYTES = 256 << 20  # what weights and activations would take


class VirtualGpu:
    """The virtual GPUs of this worker, all busy for as long as a step takes."""

    def __init__(self, cuda: Any, gpus: int) -> None:
        self._cuda = cuda
        self._kernels = [self._prepare(gpu) for gpu in range(gpus)]

    def spend(self, seconds: float) -> None:
        """Keeps all GPUs busy for this time; returns when they are done."""
        launches = round(seconds / _KERNEL_S)
        if launches <= 0:
            return
        for context, kernel in self._kernels:
            self._call("cuCtxSetCurrent", context)
            for _ in range(launches):
                self._call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        for context, _ in self._kernels:
            self._call("cuCtxSetCurrent", context)
            self._call("cuCtxSynchronize")

    def _prepare(self, gpu: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        held = ctypes.c_uint64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self._call("cuCtxSetCurrent", context)
        # Best effort: a GPU share may be smaller than this.
        self._cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(_HELD_BYTES))
        self._call("cuModuleLoadData", ctypes.byref(module), _IMAGE)
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, _KERNEL)
        return context, kernel

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} answers with CUDA error {code}")


class SleepDevice:
    """No GPU: a step sleeps instead."""

    def spend(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


def find_device() -> VirtualGpu | SleepDevice:
    """The virtual GPUs that this worker may use, if there are any."""
    if not os.environ.get("BATUTA_VGPU"):
        return SleepDevice()
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return SleepDevice()
        return VirtualGpu(cuda, count.value)
    except OSError:
        return SleepDevice()
