"""Lightning that can be resized: a callback of a few lines, and `ckpt_path`.

What makes it elastic:
1. the batch is that of all workers together, so that an epoch has the same number of steps at any size;
2. `ElasticCheckpoint` reports, and saves when Batuta asks;
3. `fit(ckpt_path=…)` goes on from there.

Lightning resumes an epoch at its step, but begins its data anew: in the epoch of a resize some samples are
seen twice and others not. A loader with `state_dict` and `load_state_dict` avoids that; Lightning keeps its
state in the checkpoint.
"""

import os
import signal
from pathlib import Path

import lightning as L  # noqa: N812 - as all of its users call it
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from batuta import sdk

NODES = int(os.environ.get("SKYPILOT_NUM_NODES", "1"))
WORKERS_PER_NODE = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
EPOCHS = int(os.environ.get("EPOCHS", "20"))
GLOBAL_BATCH = 256
CHECKPOINT = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "lightning.ckpt"


class ElasticCheckpoint(L.Callback):
    """Tells Batuta how far the training is, and saves it when asked."""

    def on_train_start(self, trainer, module):
        # All is saved by then. Lightning would finish its batch first, and wait for workers that have gone.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step, total = trainer.global_step, trainer.estimated_stepping_batches
        if trainer.is_global_zero:
            loss = outputs["loss"].item()
            sdk.report(step=step, total_steps=total, samples=step * GLOBAL_BATCH, loss=loss)
        # Rank 0 asks. The others have to know: save_checkpoint is a matter for all of them.
        wanted = trainer.is_global_zero and sdk.checkpoint_requested()
        if trainer.strategy.reduce_boolean_decision(wanted, all=False):
            save(trainer)

    def on_train_end(self, trainer, module):
        save(trainer)


def save(trainer: L.Trainer) -> None:
    draft = CHECKPOINT.with_suffix(".new")
    trainer.save_checkpoint(draft)  # returns when all workers are done
    if trainer.is_global_zero:
        draft.replace(CHECKPOINT)  # at every moment there is one complete checkpoint
        sdk.checkpointed(CHECKPOINT, step=trainer.global_step)


class Model(L.LightningModule):
    """Your model here."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))

    def training_step(self, batch, batch_idx):
        inputs, wanted = batch
        return nn.functional.mse_loss(self.net(inputs), wanted)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def make_loader() -> DataLoader:
    """Your data here. Lightning puts a DistributedSampler in."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(16384, 32, generator=draw)
    data = TensorDataset(inputs, torch.tanh(inputs[:, :2].sum(dim=1, keepdim=True)))
    own_batch = GLOBAL_BATCH // (NODES * WORKERS_PER_NODE)
    return DataLoader(data, batch_size=own_batch, shuffle=True, drop_last=True)


def main() -> None:
    L.seed_everything(0)
    trainer = L.Trainer(
        strategy="ddp",
        accelerator="auto",
        devices=WORKERS_PER_NODE,
        num_nodes=NODES,
        max_epochs=EPOCHS,
        callbacks=[ElasticCheckpoint()],
        enable_checkpointing=False,  # ours is enough
        enable_progress_bar=False,
        logger=False,
    )
    resume = CHECKPOINT if CHECKPOINT.exists() else None
    trainer.fit(Model(), make_loader(), ckpt_path=resume)
    if trainer.is_global_zero:
        sdk.result({"steps": trainer.global_step})


if __name__ == "__main__":
    main()
