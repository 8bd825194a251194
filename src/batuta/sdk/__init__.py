"""What a training script reports to Batuta, and what Batuta asks of it. It needs the standard library only.

    from batuta import sdk

    for step in range(start, total):
        loss = train_one_step()
        sdk.report(step=step + 1, total_steps=total, loss=loss)
        if sdk.checkpoint_requested():
            sdk.checkpointed(save_checkpoint(step + 1), step=step + 1)
    sdk.result({"accuracy": accuracy})

Without Batuta (none of its variables is set) every function does nothing, so that the script runs anywhere.
No function raises because of a full disk or a value that JSON does not know: it warns once on stderr and
goes on.

**Distributed training**: processes hear of a request at slightly different steps. Let rank 0 ask and
broadcast the answer, or they save at different steps. `checkpointed` and `result` are for rank 0; `report`
is for all. A slow rank makes all wait, so that all look slow; `waiting` tells them apart:

    with sdk.waiting():
        all_reduce(gradients)
    sdk.report(step=step + 1)

Each report has how long its rank worked since the last one, without the time in there. Ranks other than 0
write at most two reports a second; no step is left out of what they add up.

**How a checkpoint is asked for**: in the folder `$BATUTA_CONTROL` the file `checkpoint-request` holds a
number that grows with every request, and `checkpoint-done` the last one that was answered; a checkpoint is
wanted while the first is larger. Both are replaced as a whole, never half written. SIGUSR1 is sent
as well, for scripts that prefer a signal; without such a folder, it alone is the request. Importing this
module under Batuta installs a handler for it, which calls the one that was there before.
`checkpoint_requested` works without it, so that any thread may ask, and a launcher that keeps signals to
itself (torchrun) does no harm. In a shell script:

    number() { cat "$BATUTA_CONTROL/$1" 2>/dev/null || echo 0; }
    [ "$(number checkpoint-request)" -gt "$(number checkpoint-done)" ] && save_checkpoint

**On Kubernetes** Batuta cannot read the files of a pod, so reports go into its log: `$BATUTA_PROGRESS` is
`/dev/stderr`, and each report, checkpoint and result is a line `batuta-report {…}` there. Only the first
process of a replica reports, at most every two seconds, and only replica 0 is heard: let it gather the
`own_s()` of all ranks and report them as `own_s=[…]`, by rank. `batuta logs` leaves these lines out. The
folder of requests is read-only; `checkpoint-done` is in `$BATUTA_ANSWERS` instead.
"""

from __future__ import annotations

import os

from batuta.sdk import _lines, _requests, _stderr, _waiting
from batuta.sdk._waiting import own_time

TYPE_CHECKING = False  # importing `typing` to be told so takes longer than all the rest
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"  # that of Batuta; here as well, for environments that have the SDK alone
__all__ = ["checkpoint_requested", "checkpointed", "own_s", "report", "result", "waiting"]


def report(
    *,
    step: int | None = None,
    total_steps: int | None = None,
    epoch: float | None = None,
    total_epochs: float | None = None,
    samples: float | None = None,
    loss: Any = None,
    noise_scale: Any = None,
    own_s: Any = None,
    **metrics: Any,
) -> None:
    """Reports how far the training is. Any thread and any rank may call it, as often as it likes.

    `step` and `samples` count what is done since the very beginning, restarts included; `epoch` counts epochs
    that are finished. A loss that is NaN or infinite is reported as such. Numbers of NumPy and tensors of one
    element are fine. `noise_scale` is the gradient noise scale in samples, smoothed over some steps: with it,
    GPUs that only make the batch larger than is useful count for less. `own_s` is how long this rank worked
    since its last report without waiting for others, where the script knows that better than `waiting` does;
    or a list of that for all ranks, which rank 0 has gathered. With `$BATUTA_REPORT_EVERY_S`, and in a log
    every two seconds, the last of too many reports is kept, the others dropped.
    """
    path = os.environ.get("BATUTA_PROGRESS")
    if path:
        known = {
            "step": step,
            "total_steps": total_steps,
            "epoch": epoch,
            "total_epochs": total_epochs,
            "samples": samples,
            "loss": loss,
            "noise_scale": noise_scale,
        }
        _lines.append_report(path, known, metrics, own_s, own_time.take(step))


def waiting() -> _waiting.Waiting:
    """Put around what waits for other ranks: a collective, a barrier, a queue that another one fills.

    It tells slow ranks from those that wait for them, and the rank that hangs from all others: a rank that
    waits for longer than five seconds reports it.
    """
    return _waiting.Waiting()


def own_s() -> float:
    """How long this rank has worked since its last report with a step, without the time in `waiting`."""
    return own_time.so_far_s()


def checkpoint_requested() -> bool:
    """Whether Batuta waits for a checkpoint, because it is about to stop, move or resize this job.

    True until `checkpointed` is called, here or by another process of the job on this machine. Cheap enough
    for every step. The first call also tells Batuta that the script saves when it is asked: an elastic job
    of which neither that nor a checkpoint was seen keeps its size.
    """
    return _requests.is_waiting()


def checkpointed(path: str | os.PathLike[str], *, step: int | None = None) -> None:
    """Reports that a checkpoint is complete, on disk and worth resuming from, also without a request."""
    answered = _requests.pending()
    progress = os.environ.get("BATUTA_PROGRESS")
    if progress:
        _lines.append_checkpoint(progress, path, step, answered)
    _requests.answer(answered)


def result(value: Any) -> None:
    """Keeps the job's return value for `batuta result`: anything that JSON can say. The last call counts."""
    _lines.keep_result(value)


_requests.listen()
if os.environ.get("BATUTA_PROGRESS") == _stderr.PATH:
    _stderr.keep()  # while the error output is what it was at first
