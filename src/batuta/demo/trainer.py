"""A small elastic trainer: data-parallel SGD with NumPy and sockets, started once per replica.

    python -m batuta.demo.trainer --steps 200 --work-ms 100

What makes it elastic, and would make any other script so:

1. it resumes from `$BATUTA_CHECKPOINT_DIR`, at whatever WORLD_SIZE it finds;
2. the batch is that of all workers together, so that the size changes the pace and not the losses;
3. when `sdk.checkpoint_requested()`, it saves, reports it, and goes on until it is stopped.

The network is real, and so are its gradients. The time of a step is not: it is spent on a virtual GPU, or
slept, so that eight workers fit on a laptop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from batuta import sdk

# Before NumPy is loaded: matrices this small are not worth a thread on every core, in every worker.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from batuta.demo.process_group import BadEnvironment, PeerLost, ProcessGroup, join_group, worker_from_env
from batuta.demo.training import (
    BadCheckpoint,
    Options,
    State,
    Training,
    find_device,
    load_checkpoint,
    parse_options,
    save_checkpoint,
)

_GO_ON, _SAVE = 0, 1  # what rank 0 notes beside its gradients, for all to do after this step
_TERMINATED = 128 + signal.SIGTERM
_LOG_EVERY_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Trains to the end. Returns the exit code: 1 when another worker is lost or a checkpoint is bad."""
    signal.signal(signal.SIGTERM, _stop)
    options = parse_options(arguments)
    named = os.environ.get("BATUTA_CHECKPOINT_DIR")
    folder = Path(named) if named else None
    try:
        worker = worker_from_env(os.environ)
        # A step that takes minutes is no reason to give a worker up.
        timeout_s = options.timeout_s + 10 * options.step_s(worker.gpus)
        with join_group(worker, timeout_s) as group:
            _train(options, group, folder)
    except (BadEnvironment, BadCheckpoint, PeerLost) as problem:
        sys.stderr.write(f"trainer: {problem}\n")
        return 1
    return 0


def _train(options: Options, group: ProcessGroup, folder: Path | None) -> None:
    worker, leads = group.worker, group.worker.rank == 0
    training, device = Training(options.seed, options.batch), find_device()
    state = _resume(training, group, folder)
    if leads:
        _say(f"{worker.size} workers, {worker.gpus} GPUs, from step {state.step} of {options.steps}")
    saved, logged_s = state.step, 0.0
    while state.step < options.steps:
        begun_s = time.monotonic()
        sums = training.sums(state, training.part_of_batch(state.step, worker.rank, worker.size))
        device.spend(begun_s + options.step_s(worker.gpus) - time.monotonic())
        # Rank 0 asks for all: the others would hear of a request a step earlier or later.
        is_due = options.checkpoint_every > 0 and (state.step + 1) % options.checkpoint_every == 0
        request = _SAVE if leads and (sdk.checkpoint_requested() or is_due) else _GO_ON
        sums, note = group.sum(sums, request)
        training.advance(state, sums)
        if leads:
            _report(options, state)
            if note == _SAVE:
                saved = _save(options, state, folder)
            if time.monotonic() - logged_s > _LOG_EVERY_S:
                _say(f"step {state.step} of {options.steps}, loss {state.loss:.5f}")
                logged_s = time.monotonic()
    if leads:
        _finish(options, training, state, folder, is_saved=saved == state.step)


def _resume(training: Training, group: ProcessGroup, folder: Path | None) -> State:
    """The state to begin with. Rank 0 reads it and sends it round: other nodes may not see the same files."""
    state = training.first_state()
    if group.worker.rank == 0 and folder is not None:
        state = load_checkpoint(folder, training.seed, training.batch) or state
    return State.unpack(group.share(state.pack()))


def _save(options: Options, state: State, folder: Path | None) -> int:
    """Saves and says so. Returns the step that is safe now."""
    if folder is not None:
        sdk.checkpointed(save_checkpoint(folder, state, options.seed, options.batch), step=state.step)
    return state.step


def _report(options: Options, state: State) -> None:
    epoch, samples = state.step // options.steps_per_epoch, state.step * options.batch
    sdk.report(step=state.step, total_steps=options.steps, epoch=epoch, samples=samples, loss=state.loss)


def _finish(options: Options, training: Training, state: State, folder: Path | None, *, is_saved: bool) -> None:
    if not is_saved:
        _save(options, state, folder)
    loss = training.loss_of_all(state)
    sdk.result({"steps": state.step, "samples": state.step * options.batch, "loss": loss})
    _say(f"done: {state.step} steps, loss {loss:.6f} over all data")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    """Leaves in an orderly way, with the exit code of a process that SIGTERM ended."""
    sys.exit(_TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
