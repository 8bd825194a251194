"""Amounts of quota as people write them: GPUs and CPUs as numbers, memory in Gi."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

ALL_GPUS = "batuta.dev/gpus"
MOST_GPUS = 10_000_000
"""So many stand for all there are, where quota has to name a number."""
NO_LIMIT = "no limit"
_BYTES = ("memory", "ephemeral-storage")
_UNITS = (("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10))


def show_amount(resource: str, amount: float) -> str:
    """`8`, `2.5`, `512Gi`; what nobody has is no limit."""
    if resource in _BYTES or resource.startswith("hugepages-"):
        for unit, power in _UNITS:
            if abs(amount) >= 1 << power:
                return f"{_short(amount / (1 << power))}{unit}"
    return NO_LIMIT if amount >= MOST_GPUS else _short(amount)


def _short(amount: float) -> str:
    return f"{amount:.0f}" if amount == round(amount) else f"{amount:.3g}"


def resource_name(resource: str) -> str:
    """`gpu` for nvidia.com/gpu."""
    return "all GPUs" if resource == ALL_GPUS else resource.rpartition("/")[2]


def cell_name(flavor: str, resource: str) -> str:
    """`h100 gpu`; quota that all GPUs count in has no flavor to speak of."""
    return resource_name(resource) if resource == ALL_GPUS else f"{flavor} {resource_name(resource)}"


def show_needs(needs: Mapping[str, float]) -> Iterator[str]:
    """`8 gpu`, `16Gi memory`."""
    return (
        f"{show_amount(resource, amount)} {resource_name(resource)}" for resource, amount in needs.items()
    )
