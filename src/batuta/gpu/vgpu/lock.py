"""The lock in the device file, as the C side has it: a robust mutex that processes share."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from batuta.gpu.vgpu.layout import DeviceFile

_SHARED = 1
_ROBUST = 1
_ATTRIBUTE_BYTES = 64
"""More than any C library's pthread_mutexattr_t."""


def make_lock(file: DeviceFile) -> None:
    """Writes a lock that nobody holds."""
    threads = ctypes.CDLL(None)
    attributes = (ctypes.c_char * _ATTRIBUTE_BYTES)()
    for result in (
        threads.pthread_mutexattr_init(attributes),
        threads.pthread_mutexattr_setpshared(attributes, _SHARED),
        threads.pthread_mutexattr_setrobust(attributes, _ROBUST),
        threads.pthread_mutex_init(ctypes.byref(file.lock), attributes),
    ):
        if result != 0:
            raise OSError(result, os.strerror(result))


@contextmanager
def locked(file: DeviceFile) -> Iterator[None]:
    """Holds the lock. If its last holder was killed, whoever has it next on the C side is told to repair."""
    threads = ctypes.CDLL(None)
    address = ctypes.byref(file.lock)
    result = threads.pthread_mutex_lock(address)
    if result == errno.EOWNERDEAD:
        threads.pthread_mutex_consistent(address)
        file.damaged = 1
    elif result != 0:
        raise OSError(result, os.strerror(result))
    try:
        yield
    finally:
        threads.pthread_mutex_unlock(address)
