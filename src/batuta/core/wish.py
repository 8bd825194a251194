"""What its user wants to become of a job, beside what it asked for at submit."""

from __future__ import annotations

from enum import IntEnum


class Wish(IntEnum):
    """Kept in the World, so that it holds until it is fulfilled, whatever is killed meanwhile."""

    RUN = 0
    PARK = 1
    """Have no GPUs until somebody says RUN again."""
    CANCEL = 2
    """End. This cannot be taken back."""
    EVICT = 3
    """Leave the GPUs that it has, then run again: how a node is drained."""
    TRY = 4
    """Run when trial runs have told how; RUN does not wait for them."""
