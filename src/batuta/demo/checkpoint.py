"""Checkpoints: one file that is complete or not there, also when the machine stops half-way."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from batuta.demo.model import WEIGHTS, State

FILE = "trainer.npz"


class BadCheckpoint(Exception):
    """A checkpoint that cannot be resumed from. The message names the file and what to do."""


def save(folder: Path, state: State, seed: int, batch: int) -> Path:
    """Replaces the folder's checkpoint. Returns its path once it is on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path, draft = folder / FILE, folder / f".{FILE}.new"
    with draft.open("wb") as file:
        np.savez(
            file,
            weights=state.weights,
            velocity=state.velocity,
            step=state.step,
            loss=state.loss,
            seed=seed,
            batch=batch,
        )
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_folder(folder)
    return path


def load(folder: Path, seed: int, batch: int) -> State | None:
    """The state in the folder's checkpoint; None when there is none yet.

    Another seed or batch would be another training: going on from here would give neither of the two.
    """
    path = folder / FILE
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


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
