"""What all processes of Batuta that serve have in common: their signals, their sockets, their plain logs."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable

from batuta.spec.problem import InputError


def call_at_signals(end: Callable[[], None]) -> None:
    """Calls `end` from the running event loop at SIGINT and SIGTERM. Only the main thread of a process gets signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)


def listen(host: str, port: int, fix: str) -> socket.socket:
    """A socket that listens, or an InputError: a port that is taken is found out before anything else is done."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError.of(f"cannot listen at {host}:{port}: {error.strerror}", fix=fix) from error
    listener.listen(1024)
    return listener


def log_plainly() -> None:
    """Lines on stderr, for processes that have no engine."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
