"""With how many examples a property is tried: as many as it asks for, or a few in the inner loop."""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
FAST = "fast"
"""The profile of `make test-fast`."""
FEW = 5


def examples(wanted: int) -> int:
    """For a property that asks for another number of examples than the profile has."""
    return min(wanted, FEW) if PROFILE == FAST else wanted
