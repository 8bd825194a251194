"""Elastic Horovod with PyTorch: workers may come and go, and the whole job may stop and start again.

What makes it elastic:
1. `hvd.elastic.run` calls `train` anew whenever the workers have changed; `state.commit()` is what it goes
   back to when one was lost;
2. samples are chosen by seed and step, for all workers together;
3. when Batuta asks, rank 0 writes the state to disk, from where a new start takes it.
"""

import os
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

from batuta import sdk

STEPS = int(os.environ.get("STEPS", "2000"))
GLOBAL_BATCH = 64
COMMIT_EVERY = 10
CHECKPOINT = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "horovod.pt"


def make_model() -> nn.Module:
    """Your model here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's part of the batch of a step: the same samples at any size. Your data here."""
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(GLOBAL_BATCH, 16, generator=draw)[hvd.rank() :: hvd.size()]
    return inputs, torch.tanh(inputs[:, :2].sum(dim=1, keepdim=True))


def save(state: hvd.elastic.TorchState) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    draft = CHECKPOINT.with_suffix(".new")
    content = {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "step": state.step,
    }
    torch.save(content, draft)
    draft.replace(CHECKPOINT)  # at every moment there is one complete checkpoint
    sdk.checkpointed(CHECKPOINT, step=state.step)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, device: torch.device) -> None:
    while state.step < STEPS:
        inputs, wanted = make_batch(state.step)
        state.optimizer.zero_grad()
        loss = nn.functional.mse_loss(state.model(inputs.to(device)), wanted.to(device))
        loss.backward()
        state.optimizer.step()
        state.step += 1
        if hvd.rank() == 0:
            done = state.step * GLOBAL_BATCH
            sdk.report(step=state.step, total_steps=STEPS, samples=done, loss=loss.item())
            # All workers have the same weights. One may save them while the others wait at the next step.
            if sdk.checkpoint_requested():
                save(state)
        if state.step % COMMIT_EVERY == 0:
            state.commit()  # also where workers that have come are let in


def main() -> None:
    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    model = make_model().to(device)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    step = 0
    if CHECKPOINT.exists():
        content = torch.load(CHECKPOINT, map_location=device)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        step = content["step"]
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=step)
    train(state, device)  # begins by sending rank 0's state to all
    if hvd.rank() == 0:
        save(state)
        sdk.result({"steps": state.step})


if __name__ == "__main__":
    main()
