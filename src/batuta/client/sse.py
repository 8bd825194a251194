"""Server-sent events from bytes. Comments come through as None: a reader may look at its watch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from batuta.client.answers import Event


def read_events(chunks: Iterable[bytes]) -> Iterator[Event | None]:
    """Events as they come; None for each comment that the server sends to show that it is there."""
    seq, kind = 0, ""
    data: list[str] = []
    for line in _lines(chunks):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if kind or data:
                yield Event(seq, kind or "message", _parse("\n".join(data)))
            kind, data = "", []
        elif not field:
            yield None
        elif field == "id" and value.isdecimal():
            seq = int(value)
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at line feeds only: other separators may stand inside of JSON."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def _parse(text: str) -> dict[str, object]:
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        return {"text": text}
    return data if isinstance(data, dict) else {"value": data}
