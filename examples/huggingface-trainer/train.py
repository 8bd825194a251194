"""The Trainer of Hugging Face that can be resized: one callback, and `resume_from_checkpoint`.

What makes it elastic:
1. the batch is that of all workers together, so that the Trainer finds its place in the data at any size;
2. `BatutaCallback` reports, and has the Trainer save when Batuta asks;
3. `train(resume_from_checkpoint=…)` goes on from the newest checkpoint that is complete.
"""

import os
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from batuta import sdk

WORKERS = int(os.environ.get("WORLD_SIZE", "1"))
STEPS = int(os.environ.get("STEPS", "500"))
GLOBAL_BATCH = 32
FOLDER = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "huggingface"
COMPLETE = "complete"


class BatutaCallback(TrainerCallback):
    """Tells Batuta how far the training is, and has the Trainer save when asked."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            sdk.report(
                step=state.global_step,
                total_steps=state.max_steps,
                samples=state.global_step * GLOBAL_BATCH,
                loss=losses[-1] if losses else None,
            )
        # Rank 0 asks, for all: they would hear of a request at different steps, and wait for each other.
        answer = [state.is_world_process_zero and sdk.checkpoint_requested()]
        if WORKERS > 1:
            broadcast_object_list(answer)
        control.should_save = control.should_save or answer[0]

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            path = FOLDER / f"checkpoint-{state.global_step}"
            (path / COMPLETE).touch()  # the Trainer writes file after file, and may be killed in between
            sdk.checkpointed(path, step=state.global_step)


class Tokens(Dataset):
    """Your data here."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        first = torch.randint(100, (1,), generator=torch.Generator().manual_seed(index))
        tokens = (first + torch.arange(32)) % 100
        return {"input_ids": tokens, "labels": tokens}


def make_model() -> GPT2LMHeadModel:
    """Your model here."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=2))


def find_checkpoint() -> str | None:
    """The newest one that is complete."""
    steps = [int(path.parent.name.split("-")[1]) for path in FOLDER.glob(f"checkpoint-*/{COMPLETE}")]
    return str(FOLDER / f"checkpoint-{max(steps)}") if steps else None


def main() -> None:
    arguments = TrainingArguments(
        output_dir=str(FOLDER),
        per_device_train_batch_size=GLOBAL_BATCH // WORKERS,
        max_steps=STEPS,
        save_strategy="no",  # when asked; or "steps", to have some in between as well
        save_total_limit=2,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(make_model(), arguments, train_dataset=Tokens(), callbacks=[BatutaCallback()])
    trained = trainer.train(resume_from_checkpoint=find_checkpoint())
    if trainer.is_world_process_zero():
        sdk.result({"steps": trained.global_step, "loss": trained.training_loss})


if __name__ == "__main__":
    main()
