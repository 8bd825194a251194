"""ResourceFlavor: which nodes are meant, and who tolerates them."""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core.quota import Flavor, Taint, Toleration
from batuta.spec.kueue.part import Item, Part, check_label

MOST = 8
_UNUSED = {
    "topologyName": "where replicas stand close together is said by each task (gpu.topology)",
    "resourceWeights": "all resources weigh the same in fair sharing",
}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = ("key", "value", "effect", "timeAdded")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


def read_flavor(top: Part, name: str) -> Flavor:
    spec = top.part("spec", ("nodeLabels", "nodeTaints", "tolerations"), _UNUSED)
    top.unused += spec.unused
    return Flavor(
        name,
        spec.labels("nodeLabels", MOST),
        tuple(_taints(spec)),
        tuple(read_toleration(part) for part in spec.parts("tolerations", MOST, _TOLERATION)),
    )


def _taints(spec: Part) -> Iterable[Taint]:
    seen: set[tuple[str, str]] = set()
    for part in spec.parts("nodeTaints", MOST, _TAINT):
        taint = Taint(part.text("key"), part.text("value"), _effect(part))
        if not taint.key:
            part.fault("key", f"{part.path} needs a key")
        elif part.node is not None:
            check_label(part.reader, Item(part.node, part.path), taint.key, taint.value)
        if "effect" not in part:
            part.fault("effect", f"{part.path} needs an effect", f"one of {', '.join(_EFFECTS)}")
        if (taint.key, taint.effect) in seen:
            part.fault("key", f"{part.path}: {taint.key} with {taint.effect} appears twice")
        seen.add((taint.key, taint.effect))
        yield taint


def read_toleration(part: Part) -> Toleration:
    """One toleration, by the rules of pods."""
    found = Toleration(
        part.text("key"),
        part.word("operator", ("Equal", "Exists"), "Equal"),
        part.text("value"),
        _effect(part, ""),
    )
    if not found.key and found.operator != "Exists":
        part.fault("key", f"{part.path} has no key", "with operator Exists it tolerates everything")
    if found.operator == "Exists" and found.value:
        part.fault("value", f"{part.path}: Exists goes without a value", "drop the value, or say Equal")
    if "tolerationSeconds" in part and found.effect != "NoExecute":
        part.fault("tolerationSeconds", f"{part.path}: tolerationSeconds goes with the effect NoExecute only")
    return found


def read_tolerations(part: Part, key: str) -> tuple[Toleration, ...]:
    return tuple(read_toleration(one) for one in part.parts(key, 64, _TOLERATION))


def _effect(part: Part, default: str = "NoSchedule") -> str:
    return part.word("effect", _EFFECTS, default)
