"""Who a worker is, from torchrun's environment variables; Batuta sets the same ones without torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PORTS_TO_TRY = 8


class BadPlace(Exception):
    """Variables that contradict each other, or are no numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """One worker among `size`. Alone, it needs neither a host nor a port."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    """Where rank 0 is."""
    ports: tuple[int, ...] = ()
    """Where it may listen: the first of these that is free."""
    run: str = ""
    """The same for all workers of one start of one job, and for no others."""
    gpus_each: int = 1

    @property
    def gpus(self) -> int:
        return self.size * self.gpus_each


def find_place(env: Mapping[str, str]) -> Place:
    """The place that the environment gives. Without RANK and WORLD_SIZE, a worker is alone."""
    rank, size = _number(env, "RANK", 0), _number(env, "WORLD_SIZE", 1)
    if not 0 <= rank < size:
        raise BadPlace(f"RANK is {rank}, but WORLD_SIZE is {size}")
    # torchrun starts a worker for each GPU and says so; without it, one worker has all GPUs of its node.
    by_launcher = "LOCAL_WORLD_SIZE" in env
    gpus_each = 1 if by_launcher else max(1, _number(env, "SKYPILOT_NUM_GPUS_PER_NODE", 1))
    ports: tuple[int, ...] = ()
    if size > 1:
        port = _number(env, "MASTER_PORT", 0)
        if not 0 < port < 65536:
            raise BadPlace("WORLD_SIZE is above 1, but MASTER_PORT is not a port")
        # torchrun's own store may listen at MASTER_PORT, and torch's workers are its guests. We are not.
        shared = by_launcher and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        ports = _ports_beside(port) if shared else (port,)
    names = ("BATUTA_JOB_ID", "BATUTA_RESTART", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    run = "/".join(env.get(name, "") for name in names)
    return Place(rank, size, env.get("MASTER_ADDR") or "127.0.0.1", ports, run, gpus_each)


def _ports_beside(port: int) -> tuple[int, ...]:
    """Ports to use instead. Not the next ones, which may well be the MASTER_PORT of other jobs."""
    return tuple(20_000 + (port + 1_009 * k) % 12_000 for k in range(1, 1 + _PORTS_TO_TRY))


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise BadPlace(f"{name} is not a number: {text!r}") from None
