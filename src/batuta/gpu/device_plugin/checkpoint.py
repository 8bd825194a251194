"""Which units the kubelet has given to which containers, as it writes down for itself.

The file is read, and not the kubelet's service for pod resources: that service has the kubelet clean up its
books, and a clean-up in the middle of an allocation loses the units that are being allocated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batuta.gpu.device_plugin.stock import Resource

FILE: Final = "kubelet_internal_checkpoint"


class CheckpointUnreadable(Exception):
    """The kubelet's file is there, and is not what it should be."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The units of one resource that a container has."""

    uid: str
    """Of the pod."""
    container: str
    resource: Resource
    units: frozenset[str]


def read_holdings(folder: Path) -> tuple[Holding, ...]:
    """What containers have of our resources. A kubelet that has never given anything has no file."""
    path = folder / FILE
    try:
        data: Any = json.loads(path.read_text())["Data"]
        return tuple(
            Holding(entry["PodUID"], entry["ContainerName"], Resource(entry["ResourceName"]), _units(entry))
            for entry in data["PodDeviceEntries"] or ()
            if entry["ResourceName"] in set(Resource)
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointUnreadable(f"cannot read {path}: {type(error).__name__}: {error}") from None


def _units(entry: Any) -> frozenset[str]:
    """Units are listed by NUMA node; kubelets before 1.20 had one list."""
    listed = entry["DeviceIDs"]
    groups = listed.values() if isinstance(listed, dict) else [listed or ()]
    return frozenset(unit for group in groups for unit in group)
