"""A thin Kubernetes client: requests, informers and leader election, and nothing about jobs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

NEEDS_EXTRA: Final = "Kubernetes mode needs more packages: pip install 'batuta[kube]'"

# Said here once, in words for people, before any module below fails with the name of a package.
if not all(map(find_spec, ("aiohttp", "msgspec"))):
    raise ImportError(NEEDS_EXTRA)
