"""DeepSpeed with ZeRO that can be resized: checkpoints are made universal when the number of workers changes.

What makes it elastic:
1. `train_batch_size` is that of all workers together; DeepSpeed divides it among them;
2. ZeRO's checkpoints are in as many parts as there were workers. With another number of them, rank 0 makes a
   universal one of it first, which fits all;
3. rank 0 asks whether Batuta wants a checkpoint, and all of them save.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from batuta import sdk

STEPS = int(os.environ.get("STEPS", "1000"))
GLOBAL_BATCH = 64
FOLDER = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "deepspeed"
CONFIG = {
    "train_batch_size": GLOBAL_BATCH,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1_000_000,
}


def make_model() -> nn.Module:
    """Your model here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's part of the batch of a step: the same samples at any size. Your data here."""
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(GLOBAL_BATCH, 32, generator=draw)[dist.get_rank() :: dist.get_world_size()]
    return inputs, torch.tanh(inputs[:, :2].sum(dim=1, keepdim=True))


def is_checkpoint_wanted(device: torch.device) -> bool:
    """The same answer for all workers."""
    answer = torch.tensor(int(dist.get_rank() == 0 and sdk.checkpoint_requested()), device=device)
    dist.broadcast(answer, src=0)
    return bool(answer.item())


def save(engine: deepspeed.DeepSpeedEngine, step: int) -> None:
    """Saves, and names the checkpoint in `latest` when all workers have written their parts.

    DeepSpeed would write `latest` when rank 0 is done, and a kill could leave it with parts missing.
    """
    tag = f"step-{step}-of-{dist.get_world_size()}"
    engine.save_checkpoint(FOLDER, tag=tag, client_state={"step": step}, save_latest=False)
    if dist.get_rank() == 0:
        draft = FOLDER / "latest.new"
        draft.write_text(tag)
        draft.replace(FOLDER / "latest")
        for old in set(FOLDER.glob("step-*")) - {FOLDER / tag}:
            shutil.rmtree(old)
        sdk.checkpointed(FOLDER / tag, step=step)


def find_tag() -> str | None:
    """The checkpoint to go on from, made universal if it has another number of parts than we are workers."""
    latest = FOLDER / "latest"
    tag = latest.read_text() if latest.exists() else None
    if tag is None or tag.endswith(f"-of-{dist.get_world_size()}"):
        return tag
    universal = FOLDER / f"{tag}-universal"
    if dist.get_rank() == 0 and not universal.exists():
        draft = FOLDER / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        convert = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
        folders = ["--input_folder", str(FOLDER / tag), "--output_folder", str(draft)]
        subprocess.run([*convert, *folders], check=True)
        draft.replace(universal)
    dist.barrier()
    return universal.name


def main() -> None:
    deepspeed.init_distributed()
    tag = find_tag()
    is_universal = tag is not None and tag.endswith("-universal")
    model = make_model()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config=CONFIG | {"checkpoint": {"load_universal": is_universal}},
    )
    step = 0
    if tag is not None:
        _, state = engine.load_checkpoint(FOLDER, tag=tag)
        step = state["step"]
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}, from step {step} of {STEPS}", flush=True)
    loss = torch.tensor(float("nan"))
    while step < STEPS:
        inputs, wanted = (part.to(engine.device, torch.bfloat16) for part in make_batch(step))
        loss = nn.functional.mse_loss(engine(inputs), wanted)
        engine.backward(loss)
        engine.step()
        step += 1
        if dist.get_rank() == 0:
            sdk.report(step=step, total_steps=STEPS, samples=step * GLOBAL_BATCH, loss=loss.item())
        if is_checkpoint_wanted(engine.device):
            save(engine, step)
    save(engine, step)
    if dist.get_rank() == 0:
        sdk.result({"steps": step, "loss": loss.item()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
