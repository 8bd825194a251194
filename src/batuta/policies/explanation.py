"""One short sentence per job about the number of GPUs that a policy gave it."""

from __future__ import annotations

from batuta.core.arrays import IntArray
from batuta.core.view import PoolView


def explain_allocation(policy: str, view: PoolView, gpus: IntArray) -> list[str]:
    """Why each job has what it has, in the order of the view, with the numbers that show it."""
    left = view.capacity - int(gpus.sum())
    columns = zip(
        gpus.tolist(),
        view.min.tolist(),
        view.size.tolist(),
        view.max.tolist(),
        view.sizes.next(gpus).tolist(),
        strict=True,
    )
    return [
        _explain_waiting(policy, low, size, left)
        if not got
        else _explain_running(policy, got, low, size, high, up - got, left)
        for got, low, size, high, up in columns
    ]


def _explain_waiting(policy: str, low: int, size: int, left: int) -> str:
    if left < low:
        return f"0 GPUs: needs {low}, {left} left"
    if left < size:
        return f"0 GPUs: asks for {size} (at least {low}), {left} left"
    return f"0 GPUs: {left} left, but {policy} passes it by (needs {low}, asks for {size})"


def _explain_running(policy: str, got: int, low: int, size: int, high: int, step: int, left: int) -> str:
    if got == high:
        return f"{got} of {high} GPUs: its maximum"
    if got == low:
        what = "its minimum"
    elif got == size:
        what = "the size it asked for"
    else:
        what = f"{got - low} above its minimum"
    if step > left:
        return f"{got} of {high} GPUs: {what}; the next step takes {step}, {left} left"
    return f"{got} of {high} GPUs: {what}; {policy} gives no more, {left} left"
