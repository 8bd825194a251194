"""Data-parallel training with mpi4py that can be resized: it starts again from its checkpoint, at any size.

What makes it elastic:
1. the batch is that of all workers together, and each takes every n-th sample of it;
2. the state is in one file, replaced as a whole, and read at the start;
3. rank 0 asks whether Batuta wants a checkpoint, and saves.
"""

import os
from pathlib import Path

import numpy as np
from mpi4py import MPI

from batuta import sdk

STEPS = int(os.environ.get("STEPS", "2000"))
GLOBAL_BATCH = 64
CHECKPOINT = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "mpi.npz"


def make_batch(step: int, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """This worker's part of the batch of a step. Your data here."""
    inputs = np.random.default_rng(step).normal(size=(GLOBAL_BATCH, 16))[rank::size]
    return inputs, inputs @ np.arange(16.0)


def save(weights: np.ndarray, step: int) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    draft = CHECKPOINT.with_suffix(".new")
    with draft.open("wb") as file:
        np.savez(file, weights=weights, step=step)
    draft.replace(CHECKPOINT)  # at every moment there is one complete checkpoint
    sdk.checkpointed(CHECKPOINT, step=step)


def main() -> None:
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    weights, step = np.zeros(16), 0
    if rank == 0 and CHECKPOINT.exists():
        with np.load(CHECKPOINT) as kept:
            weights, step = kept["weights"], int(kept["step"])
    weights, step = world.bcast((weights, step))
    if rank == 0:
        print(f"{size} workers, from step {step} of {STEPS}", flush=True)
    sums = np.empty(17)
    while step < STEPS:
        inputs, wanted = make_batch(step, rank, size)
        error = inputs @ weights - wanted
        own = np.append(inputs.T @ error, 0.5 * error @ error)  # the gradient, and the loss behind it
        world.Allreduce(own, sums, op=MPI.SUM)
        weights -= 0.01 * sums[:-1] / GLOBAL_BATCH
        step += 1
        if rank == 0:
            loss = sums[-1] / GLOBAL_BATCH
            sdk.report(step=step, total_steps=STEPS, samples=step * GLOBAL_BATCH, loss=loss)
            # All workers have the same weights. One may save them while the others wait at the next step.
            if sdk.checkpoint_requested():
                save(weights, step)
    if rank == 0:
        save(weights, step)
        sdk.result({"steps": step, "error": float(np.abs(weights - np.arange(16.0)).max())})


if __name__ == "__main__":
    main()
