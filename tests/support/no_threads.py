"""A process in which no thread can be started, as where a limit of the machine is reached."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MORE_THAN_THERE_IS = 1 << 46


@contextmanager
def no_new_threads() -> Iterator[None]:
    """Each thread asks for more memory than an address space has, so the system refuses it."""
    before = threading.stack_size(_MORE_THAN_THERE_IS)
    try:
        yield
    finally:
        threading.stack_size(before)
