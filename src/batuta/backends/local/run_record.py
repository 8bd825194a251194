"""What a server has to know of a run that another server started: `run.json` in the run's folder."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.small_files import read_json, write_json, write_small
from batuta.core.cluster import Placement, Span
from batuta.core.job import JobId

_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One start of a job, all replicas together. Written before any of them is started."""

    job: JobId
    number: int
    """How often the job was started before: BATUTA_RESTART."""
    placement: Placement
    ranks: int
    """Replicas that are started; fewer than there are places for where one starts the others."""
    port: int
    started_s: float
    key: str = field(default_factory=lambda: secrets.token_hex(6))
    """Makes its replicas' run ids unique on this machine, for all time."""
    asked_s: float | None = None
    """When a checkpoint was asked for, because it is to stop."""
    leaving: bool = False
    """It was told to stop, because it is wanted elsewhere or not at all: how it ends then is no failure."""
    interrupted: bool = False
    """It was told to stop because the server shut down: nobody has planned that."""
    trailing: bool = False
    """Rank 0 had ended well, and the others were told to stop because they did not follow."""
    started_on: Placement | None = None
    """Where it was started, when it has changed its place without a restart since."""

    @property
    def first(self) -> Placement:
        return self.started_on or self.placement

    def run_id(self, rank: int) -> str:
        return f"b-{_UNFIT.sub('-', self.job)[:80]}-{self.number}-{rank}-{self.key}"

    def at_port(self, port: int) -> RunRecord:
        return replace(self, port=port)

    def moved_to(self, placement: Placement) -> RunRecord:
        return replace(self, placement=placement, started_on=self.first)

    def asked(self, now_s: float) -> RunRecord:
        return replace(self, asked_s=now_s)

    def left(self, *, interrupted: bool = False) -> RunRecord:
        return replace(self, leaving=True, interrupted=interrupted)

    def trailed(self) -> RunRecord:
        return replace(self, trailing=True)


def write_record(files: JobFiles, record: RunRecord) -> None:
    """Writes a new version of the record. OSError when that is not possible."""
    write_json(_path(files, record.number), _content(record))


def write_first_record(files: JobFiles, record: RunRecord) -> None:
    """Writes the record before anything is started: one that is half-written is as good as none."""
    write_small(_path(files, record.number), json.dumps(_content(record)).encode())


def _content(record: RunRecord) -> dict[str, Any]:
    return {
        "job": record.job,
        "number": record.number,
        "placement": _to_json(record.placement),
        "started_on": None if record.started_on is None else _to_json(record.started_on),
        "size": record.placement.size,
        "ranks": record.ranks,
        "port": record.port,
        "started_s": record.started_s,
        "key": record.key,
        "asked_s": record.asked_s,
        "leaving": record.leaving,
        "interrupted": record.interrupted,
        "trailing": record.trailing,
    }


def read_record(files: JobFiles, number: int) -> RunRecord | None:
    """The record of a run; None when it was never written, so that nothing was ever started."""
    try:
        return _record(read_json(_path(files, number)))
    except (KeyError, TypeError, ValueError):
        return None


def _path(files: JobFiles, number: int) -> Path:
    return files.run(number) / "run.json"


def _record(content: Any) -> RunRecord:
    return RunRecord(
        str(content["job"]),
        int(content["number"]),
        _placement(content["placement"]),
        int(content["ranks"]),
        int(content["port"]),
        float(content["started_s"]),
        str(content["key"]),
        content["asked_s"],
        bool(content["leaving"]),
        bool(content["interrupted"]),
        bool(content.get("trailing", False)),
        None if content["started_on"] is None else _placement(content["started_on"]),
    )


def _to_json(placement: Placement) -> list[Any]:
    return [[span.node, list(span.gpus)] for span in placement.spans]


def _placement(spans: Any) -> Placement:
    return Placement(tuple(Span(node, tuple(gpus)) for node, gpus in spans))
