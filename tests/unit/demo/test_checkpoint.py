import numpy as np
import pytest

from batuta.demo import training
from batuta.demo.training import Training


def trained():
    training = Training(1, 64)
    state = training.first_state()
    training.advance(state, training.sums(state, training.part_of_batch(0, 0, 1)))
    return state


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path):
    state = trained()
    path = training.save_checkpoint(tmp_path / "new" / "folder", state, 1, 64)
    back = training.load_checkpoint(path.parent, 1, 64)
    assert back is not None
    assert back.pack().tobytes() == state.pack().tobytes()
    assert [file.name for file in path.parent.iterdir()] == [training.CHECKPOINT_FILE]


def test_nothing_saved_yet(tmp_path):
    assert training.load_checkpoint(tmp_path / "nowhere", 1, 64) is None


def test_a_save_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    state = trained()
    training.save_checkpoint(tmp_path, state, 1, 64)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", fail)
    state.step = 99
    with pytest.raises(OSError, match="no space"):
        training.save_checkpoint(tmp_path, state, 1, 64)
    kept = training.load_checkpoint(tmp_path, 1, 64)
    assert kept is not None
    assert kept.step == 1


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut off"])
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / training.CHECKPOINT_FILE).write_bytes(content)
    with pytest.raises(training.BadCheckpoint, match=r"trainer\.npz cannot be read"):
        training.load_checkpoint(tmp_path, 1, 64)


def test_another_training_or_model_is_refused(tmp_path):
    state = trained()
    training.save_checkpoint(tmp_path, state, 1, 64)
    with pytest.raises(training.BadCheckpoint, match="seed 1 and batch 64, asked for are 2 and 64"):
        training.load_checkpoint(tmp_path, 2, 64)
    state.weights = state.weights[:10]
    training.save_checkpoint(tmp_path, state, 1, 64)
    with pytest.raises(training.BadCheckpoint, match="of another model"):
        training.load_checkpoint(tmp_path, 1, 64)
