"""Plain PyTorch DDP that can be resized: it resumes in the middle of an epoch, with any number of workers.

What makes it elastic:
1. the batch is that of all workers together, and each takes its part: see GLOBAL_BATCH;
2. the state is in one file, replaced as a whole, and read at the start: see save and load;
3. when Batuta asks, it saves and says so: see the loop.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from batuta import sdk

EPOCHS = int(os.environ.get("EPOCHS", "20"))
GLOBAL_BATCH = 256
CHECKPOINT = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "ddp.pt"


def make_data() -> Dataset:
    """Your data here."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(16384, 32, generator=draw)
    return TensorDataset(inputs, torch.tanh(inputs[:, :2].sum(dim=1, keepdim=True)))


def make_model() -> nn.Module:
    """Your model here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))


def load_rest_of_epoch(data: Dataset, epoch: int, done: int) -> DataLoader:
    """What is left of an epoch after so many steps.

    DistributedSampler deals the shuffled samples out like cards. So the first n steps use up the same samples
    with any number of workers, as long as the batch of all of them is the same.
    """
    own_batch = GLOBAL_BATCH // dist.get_world_size()
    sampler = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    sampler.set_epoch(epoch)
    left = list(sampler)[done * own_batch :]
    return DataLoader(Subset(data, left), batch_size=own_batch, drop_last=True)


def save(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    draft = CHECKPOINT.with_suffix(".new")
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, draft)
    draft.replace(CHECKPOINT)  # at every moment there is one complete checkpoint
    sdk.checkpointed(CHECKPOINT, step=step)


def load(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Returns how many steps are done."""
    if not CHECKPOINT.exists():
        return 0
    state = torch.load(CHECKPOINT, map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def main() -> None:
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda:0" if has_gpu else "cpu")  # CUDA_VISIBLE_DEVICES names this replica's GPU
    leads = dist.get_rank() == 0
    data = make_data()
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps_per_epoch = len(data) // GLOBAL_BATCH
    step, total = load(model, optimizer), EPOCHS * steps_per_epoch
    if leads:
        print(f"{dist.get_world_size()} workers, from step {step} of {total}", flush=True)
    loss = torch.tensor(float("nan"))
    while step < total:
        epoch, done = divmod(step, steps_per_epoch)
        for inputs, wanted in load_rest_of_epoch(data, epoch, done):
            loss = nn.functional.mse_loss(model(inputs.to(device)), wanted.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if leads:
                sdk.report(
                    step=step,
                    total_steps=total,
                    epoch=step // steps_per_epoch,
                    samples=step * GLOBAL_BATCH,
                    loss=loss.item(),
                )
                # All workers have the same weights. One may save them while the others wait at the next step.
                if sdk.checkpoint_requested():
                    save(model, optimizer, step)
    if leads:
        save(model, optimizer, step)
        sdk.result({"steps": step, "loss": loss.item()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
