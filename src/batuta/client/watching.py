"""Following a server over broken connections and restarts: events, the end of a job, a log that grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from batuta.client.answers import Event, Job
from batuta.client.errors import NoServerError, WaitTimeoutError
from batuta.client.sse import read_events
from batuta.client.transport import TIMEOUT_S, Params, Transport

QUIET_S = 40.0
"""The server sends a comment every 15 s: a connection that is silent for longer is dead."""
OFFSET = "Batuta-Log-Offset"
"""The header that says where in the log an answer begins."""


def follow_events(transport: Transport, after: int | None, params: Params) -> Iterator[Event]:
    """All events from now on, or after a number, each once, however often the connection breaks."""
    while True:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        try:
            with transport.stream("/events", quiet_s=QUIET_S, headers=headers, params=params) as response:
                for event in read_events(response.iter_bytes()):
                    if event is not None:
                        after = event.seq or after
                        yield event
        except (httpx2.TransportError, NoServerError):
            pass
        transport.wait_for_server()


def read_past(transport: Transport, after: int, last: int, params: Params) -> tuple[Event, ...]:
    """The events after a number, up to and with another one."""
    asked = {**params, "follow": "false"}
    headers = {"Last-Event-ID": str(after)}
    with transport.stream("/events", quiet_s=TIMEOUT_S, headers=headers, params=asked) as response:
        found = tuple(read_events(response.iter_bytes()))
    return tuple(event for event in found if event is not None and after < event.seq <= last)


def wait_for(
    transport: Transport,
    job_id: str,
    look: Callable[[], Job],
    done: Callable[[Job], bool],
    timeout_s: float | None,
    tell: Callable[[Job], None] | None,
) -> Job:
    """Looks at a job whenever something happened to it, until it is done."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    params = {"job": job_id}
    while True:
        left_s = QUIET_S if give_up is None else give_up - time.monotonic()
        try:
            # The stream first, the look second: what happens in between is not missed.
            with transport.stream(
                "/events", quiet_s=max(0.05, min(QUIET_S, left_s)), params=params
            ) as response:
                events = read_events(response.iter_bytes())
                while True:
                    job = look()
                    if tell is not None:
                        tell(job)
                    if done(job):
                        return job
                    if not _next_about(job_id, events, give_up):
                        break
        except httpx2.ReadTimeout:
            pass
        except (httpx2.TransportError, NoServerError):
            transport.wait_for_server()
        if give_up is not None and time.monotonic() >= give_up:
            job = look()
            if done(job):
                return job
            raise WaitTimeoutError(f"job {job.label} is {job.state} after {timeout_s:g} s")


def _next_about(job_id: str, events: Iterator[Event | None], give_up: float | None) -> bool:
    """True at the next event of a job; False when the stream ends, or could outlast the deadline."""
    for event in events:
        if event is not None and event.concerns(job_id):
            return True
        if give_up is not None and give_up - time.monotonic() < QUIET_S:
            return False
    return False


def follow_log(
    transport: Transport, path: str, params: dict[str, Any], is_over: Callable[[], bool]
) -> Iterator[bytes]:
    """A log, or from its last lines on, until the job is over; it goes on where a connection broke."""
    asked = params | {"follow": "true"}
    headers: dict[str, str] = {}
    over = False
    while True:
        try:
            with transport.stream(path, quiet_s=QUIET_S, headers=headers, params=asked) as response:
                position = int(response.headers.get(OFFSET, 0))
                for chunk in response.iter_bytes():
                    position += len(chunk)
                    headers = {"Range": f"bytes={position}-"}
                    asked.pop("tail", None)
                    yield chunk
        except httpx2.ReadTimeout:
            continue
        except (httpx2.TransportError, NoServerError):
            transport.wait_for_server()
            continue
        # A server that shuts down ends the stream just as properly as the end of the job does. So the last
        # look is one that began when the job was known to be over.
        if over:
            return
        over = is_over()
