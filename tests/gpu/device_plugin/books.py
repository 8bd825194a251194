"""Cards, pods and what the kubelet has given, for tests of who gets what."""

from collections.abc import Sequence

from batuta.gpu.device_plugin.allocation import AllocationState, ContainerRequest, DeviceAssignment, SharePod
from batuta.gpu.device_plugin.inventory import Card, DeviceInventory, Overcommit, Resource, unit_id

MEMORY, COMPUTE = Resource.MEMORY, Resource.COMPUTE


def card(index: int, memory_mib: int = 2560, illness: str = "") -> Card:
    """Ten units of memory, unless it is said otherwise."""
    return Card(index, f"GPU-{index}", memory_mib, illness)


def stock(cards: int = 2, ill: Sequence[int] = (), generosity: Overcommit | None = None) -> DeviceInventory:
    found = tuple(card(index, illness="Xid 79" if index in ill else "") for index in range(cards))
    return DeviceInventory(found, generosity or Overcommit())


def units(index: int, *numbers: int, resource: Resource = MEMORY) -> list[str]:
    return [unit_id(card(index), resource, number) for number in numbers]


def pod(
    name: str, memory: int = 0, compute: int = 0, on: int | None = 0, bound_s: float = 0.0, **more: bool
) -> SharePod:
    return SharePod("team", name, f"uid-{name}", on, (ContainerRequest("main", memory, compute),), bound_s, **more)


def holding(name: str, ids: Sequence[str], resource: Resource = MEMORY, container: str = "main") -> DeviceAssignment:
    return DeviceAssignment(f"uid-{name}", container, resource, frozenset(ids))


def books(
    *pods: SharePod,
    held: Sequence[DeviceAssignment] = (),
    of: DeviceInventory | None = None,
    began: tuple[str, str] | None = None,
) -> AllocationState:
    return AllocationState(of or stock(), pods, held, began)
