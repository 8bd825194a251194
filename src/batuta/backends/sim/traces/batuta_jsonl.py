"""Batuta's own workload file: JSON lines, a header and then one job per line; nothing is lost on the way.

    {"batuta_workload": 1, "name": "demo", "notes": []}
    {"id": "a", "submit_s": 0, "size": 4, "min": 1, "max": 8, "work_s": 14400, "curve": [1, 1.9, 2.7, 3.4]}

| field | meaning | when absent |
|---|---|---|
| `id` | unique name | must be there |
| `submit_s` | seconds from the start of the simulation; not shifted by the reader | must be there |
| `size`, `min`, `max` | GPUs that it asked for, and the range that it can run with | min = max = size |
| `sizes` | the only legal GPU counts, ascending from min to max | every count |
| `work_s` | true run time on one GPU of the reference type | must be there |
| `curve` | true speeds on 1, 2, … GPUs relative to one, or `"linear:N"`; see below | linear to max |
| `believed_work_s`, `believed_curve` | what the scheduler is told instead | the truth |
| `gpus_per_replica` | GPUs of one replica; every size is a multiple of it | 1 |
| `name`, `user`, `queue`, `application` | who and what | "", "", "default", "" |
| `priority` | higher goes first | 0 |
| `kind` | script, torch-elastic, horovod-elastic, mpi | script |
| `gpu_types` | accepted GPU types with their relative speed: `{"V100": 1.0, "K80": 0.2}` | all at 1 |
| `share` | a part of one GPU: `{"memory_mib": 8192, "compute_percent": 50}` | whole GPUs |
| `topology` | `{"within": "any" / "node" / "rack", "required": false, "single_numa": false}` | anywhere |
| `cpus_milli_per_gpu`, `memory_mib_per_gpu` | what lies beside each GPU | 0: not counted |
| `node_labels`, `tolerations` | `{"pool": "train"}`, `["spot"]` | none |
| `restart_s` | seconds without progress after a start, resize or migration | 30 |
| `checkpoint_interval_s` | seconds between checkpoints; null: when asked | null |
| `goodput` | `{"application", "num_replicas", "batch_size"}` for the goodput replay | none |

Beyond the end of a curve its last speed holds. A curve that knows what it costs to span nodes and racks is
written `{"speeds": …, "across_nodes": 0.9, "across_racks": 0.8}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from batuta.backends.sim.traces.job_record import Fault, decode, encode
from batuta.backends.sim.traces.trace_format import TraceFile, TraceFormat, TraceOptions
from batuta.backends.sim.workload import SimJob, Workload
from batuta.spec.problem import InputError, Problem, did_you_mean

VERSION = 1
_MARK = "batuta_workload"
_HEADER = (_MARK, "name", "notes")


def dump_workload(workload: Workload) -> str:
    """The text of the file. Equal workloads give equal bytes."""
    header = {_MARK: VERSION, "name": workload.name, "notes": list(workload.notes)}
    records: Iterator[dict[str, Any]] = (encode(own) for own in workload.jobs)
    lines = [json.dumps(header), *(json.dumps(record, allow_nan=False) for record in records)]
    return "\n".join(lines) + "\n"


def save_workload(workload: Workload, path: Path, overwrite: bool = False) -> None:
    """Writes the whole file or nothing, also when the process dies half-way."""
    if path.exists():
        if not path.is_file():
            raise InputError.of("is not a regular file", file=str(path), fix="choose another name")
        if not overwrite:
            raise _already_there(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="\n") as out:
            out.write(dump_workload(workload))
            out.flush()
            os.fsync(out.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, it fails if someone was faster
    except FileExistsError:
        raise _already_there(path) from None
    except OSError as error:
        raise InputError.of(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read(file: TraceFile, options: TraceOptions) -> Workload:
    """The workload; jobs in submit order, ties as in the file."""
    problems: list[Problem] = []
    header: dict[str, Any] | None = None
    jobs: list[SimJob] = []
    first_line_of: dict[str, int] = {}
    for line, text in enumerate(file.text.split("\n"), start=1):
        if not text.strip():
            continue

        def fault(message: str, fix: str = "", line: int = line) -> None:
            problems.append(Problem(message, file.name, line, fix=fix))

        record = _parse(text, fault)
        if record is _NOT_JSON:
            continue
        if header is None:
            header = _check_header(record, fault)
            continue
        own = decode(record, fault)
        job_id = record.get("id") if isinstance(record, dict) else None
        if isinstance(job_id, str) and job_id:
            first = first_line_of.setdefault(job_id, line)
            if first != line:
                fault(f"id {job_id} is taken by line {first}", "ids must be unique")
        if own is not None:
            jobs.append(own)
    if not jobs and not problems:
        problems.append(Problem("holds no jobs", file.name))
    if problems:
        raise InputError(problems)
    jobs.sort(key=lambda own: own.job.submit_s)
    known = header or {}
    return Workload(known.get("name") or file.title, FORMAT.name, tuple(jobs), tuple(known.get("notes", ())))


_NOT_JSON = object()


def _parse(text: str, fault: Fault) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        fault(f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        fault(f"is not JSON: {error}")
    return _NOT_JSON


def _check_header(record: Any, fault: Fault) -> dict[str, Any]:
    """The header with its bad parts told and left out."""
    if not isinstance(record, dict) or _MARK not in record:
        fault("the header is missing", f'begin the file with {{"{_MARK}": {VERSION}, "name": "…"}}')
        return {}
    version, name, notes = record[_MARK], record.get("name", ""), record.get("notes", [])
    if version != VERSION or isinstance(version, bool):
        fault(f"{_MARK} must be {VERSION}, found {version!r}", "a newer Batuta may read it")
    for key in record:
        if key not in _HEADER:
            fault(f"unknown field {key}", did_you_mean(key, _HEADER))
    if not isinstance(name, str):
        fault(f"name must be a text, found {name!r}")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        fault(f"notes must be a list of texts, found {notes!r}")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` with an option makes one for every line."""


def _already_there(path: Path) -> InputError:
    return InputError.of(
        "exists already", file=str(path), fix="choose another name, or --force to replace it"
    )


def _recognises(first_line: str) -> bool:
    try:
        record = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and _MARK in record


FORMAT = TraceFormat(
    "batuta",
    f'JSON lines that begin with {{"{_MARK}": {VERSION}, …}}',
    _recognises,
    read,
    rigid=False,
)
