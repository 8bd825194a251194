"""Batuta: a GPU cluster scheduler for elastic deep-learning training.

One decision core, three places to run it: a simulation, real processes on one machine, a Kubernetes cluster.
`batuta.Client` submits jobs from Python; `batuta.sdk` is for training scripts.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` to be told so takes longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from batuta.client.client import Client as Client
    from batuta.client.errors import ApiError as ApiError
    from batuta.client.errors import ClientError as ClientError
    from batuta.client.errors import NoServerError as NoServerError
    from batuta.client.errors import WaitTimeoutError as WaitTimeoutError

__version__ = "0.1.0"

_MODULES = {
    "Client": "batuta.client.client",
    "ApiError": "batuta.client.errors",
    "ClientError": "batuta.client.errors",
    "NoServerError": "batuta.client.errors",
    "WaitTimeoutError": "batuta.client.errors",
}


def __getattr__(name: str) -> Any:
    """Loads the client when it is asked for: a training script that imports `batuta.sdk` does not need it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'batuta' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *_MODULES))
