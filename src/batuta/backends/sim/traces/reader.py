"""Reads a workload file of any known format; the first line tells which."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

from batuta.backends.sim.traces.batuta_jsonl import BATUTA, read_batuta
from batuta.backends.sim.traces.published import ALIBABA, ELASTICFLOW, GAVEL, MURI, PHILLY, POLLUX
from batuta.backends.sim.traces.trace_format import RIGID, RIGID_OPTIONS, TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import Workload
from batuta.spec.problem import InputError, did_you_mean, read_text

SAMPLE = "sample"


def sample_workload() -> Workload:
    """The jobs that come with Batuta; their notes say how the generator made them."""
    text = resources.files("batuta").joinpath("data", "sample.jsonl").read_text(encoding="utf-8")
    return read_batuta(TraceFile(Path(SAMPLE), text), RIGID_OPTIONS)


FORMATS: dict[str, TraceFormat] = {one.name: one for one in (BATUTA, PHILLY, ELASTICFLOW, MURI, GAVEL, ALIBABA, POLLUX)}


def read_workload(path: str | Path, format: str | None = None, options: TraceOptions = RIGID_OPTIONS) -> Workload:
    """Reads a workload; the first line tells its format, unless it is given.

    The path `sample` means the workload that comes with Batuta (`./sample` is a file of that name).
    """
    if str(path) == SAMPLE and format is None:
        return sample_workload()
    forced = "" if format is None else format.strip().lower()
    if forced and forced not in FORMATS:
        raise InputError.of(f"unknown workload format {format!r}", fix=did_you_mean(forced, list(FORMATS)))
    file = TraceFile(Path(path), read_text(Path(path)))
    chosen = FORMATS[forced] if forced else detect_format(file)
    with _collector_paused():
        workload = chosen.read(file, options)
    if chosen.rigid or options.elasticity == RIGID:
        return workload
    note = f"jobs of a {chosen.name} file say how they scale: elastic sizes and curve are not used"
    return replace(workload, notes=(*workload.notes, note))


def detect_format(file: TraceFile) -> TraceFormat:
    """The one format that recognises the file's first line."""
    for candidate in FORMATS.values():
        if candidate.recognises(file.first_line):
            return candidate
    found = file.first_line if len(file.first_line) <= 200 else file.first_line[:199] + "…"
    known = "; ".join(f"{one.name}: {one.looks}" for one in FORMATS.values())
    raise InputError.of(
        f"the format is not known from its first line: {found!r}",
        file=file.name,
        line=1,
        fix=f"known formats are {known}; --format forces one",
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A reader makes a hundred thousand objects and no cycle: looking for some costs a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
