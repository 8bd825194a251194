"""DDP under torchrun that can be resized: the same course with any number of nodes and workers.

What makes it elastic:
1. samples are chosen by seed and step, for all workers together; each takes every n-th of them;
2. the state is in one file, replaced as a whole, and read at the start;
3. rank 0 asks whether Batuta wants a checkpoint, and all hear the answer at the same step.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from batuta import sdk

STEPS = int(os.environ.get("STEPS", "2000"))
GLOBAL_BATCH = 64
CHECKPOINT = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "torchrun.pt"


def make_model() -> nn.Module:
    """Your model here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's part of the batch of a step. Your data here."""
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(GLOBAL_BATCH, 16, generator=draw)[dist.get_rank() :: dist.get_world_size()]
    return inputs, torch.tanh(inputs[:, :2].sum(dim=1, keepdim=True))


def is_checkpoint_wanted(device: torch.device) -> bool:
    """The same answer for all workers, which would hear of a request at different steps."""
    answer = torch.tensor(int(dist.get_rank() == 0 and sdk.checkpoint_requested()), device=device)
    dist.broadcast(answer, src=0)
    return bool(answer.item())


def save(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    if dist.get_rank() == 0:
        CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
        draft = CHECKPOINT.with_suffix(".new")
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, draft)
        draft.replace(CHECKPOINT)  # at every moment there is one complete checkpoint
        sdk.checkpointed(CHECKPOINT, step=step)
    dist.barrier()


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
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if has_gpu else "cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, size = load(model, optimizer), dist.get_world_size()
    print(f"rank {dist.get_rank()} of {size}, from step {step} of {STEPS}", flush=True)
    mean = torch.tensor(float("nan"))
    while step < STEPS:
        inputs, wanted = make_batch(step)
        loss = nn.functional.mse_loss(model(inputs.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        mean = loss.detach() / size
        dist.all_reduce(mean)  # one number, so that what is reported is the loss of the whole batch
        if dist.get_rank() == 0:
            sdk.report(step=step, total_steps=STEPS, samples=step * GLOBAL_BATCH, loss=mean.item())
        if is_checkpoint_wanted(device):
            save(model, optimizer, step)
    save(model, optimizer, step)
    if dist.get_rank() == 0:
        sdk.result({"steps": step, "loss": mean.item()})
        time.sleep(1)  # the others meet through this one: when it leaves first, they may wait for ever
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
