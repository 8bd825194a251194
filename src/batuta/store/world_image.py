"""The World ↔ bytes, without the jobs that are over, which are kept one by one (see snapshots.py).

A World is made again by the core's own methods, then all that was counted or learned since is laid over it.
So what follows from nodes and requests is never read from a file, and a column or counter that a later
version adds begins as it would for a new job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batuta.core.cluster import Node, Placement
from batuta.core.curve import CurvePool, SpeedCurve
from batuta.core.idle import Idle, Usage
from batuta.core.job import Job
from batuta.core.job_table import JobTable
from batuta.core.layout import Card, Layout
from batuta.core.progress import Progress
from batuta.core.quota import Flavors, Quota
from batuta.core.reach import Wishes
from batuta.core.trial import TrialMeasurement
from batuta.core.world import Avoided, Others, World
from batuta.store.errors import CodecError
from batuta.store.parcel import unwrap, wrap
from batuta.store.phases_form import OUTLOOKS
from batuta.store.values import form_of

VERSION = 2
"""Changes when an image would be misread; then the journal is replayed."""
_COUNTERS = ("picky", "irregular", "moving", "broken", "narrow", "held_back", "crowd_s")
_NUMBER, _NODES, _JOBS, _QUOTA = (form_of(kind) for kind in (float, list[Node], list[Job], Quota))
_FLAVORS = form_of(dict[str, Flavors])
_PROGRESS = form_of(dict[str, Progress])
_USAGE, _IDLE, _LOADS = (form_of(kind) for kind in (dict[int, Usage], dict[str, Idle], dict[str, float]))
_TRIALS = form_of(dict[str, tuple[TrialMeasurement, ...]])
_PLACEMENTS, _REACH = form_of(list[Placement | None]), form_of(dict[Wishes, list[int]])


def draw(world: World) -> bytes:
    """Everything about a World but the jobs that are over."""
    jobs = world.jobs
    header = {
        "v": VERSION,
        "version": world.version,
        "now_s": _write(_NUMBER, world.now_s),
        "open_capacity": world._open_capacity,
        "policy": world.policy,
        "progress": _write(_PROGRESS, world.progress),
        "outlooks": _write(OUTLOOKS, jobs.outlooks),
        "cordoned": hex(world.cordoned),
        "lost": hex(world.lost),
        "ill": [[i, hex(mask)] for i, mask in world.ill.items()],
        "others": [[i, hex(others.gpus), *others[1:]] for i, others in world.others.items()],
        "avoided": [[job, hex(nodes), until_s] for job, (nodes, until_s) in world.avoided.items()],
        "usage": _write(_USAGE, world.usage),
        "idle": _write(_IDLE, world.idle),
        "loads": _write(_LOADS, world.loads),
        "trials": _write(_TRIALS, world.trials),
        "quota": _write(_QUOTA, world.quota),
        "flavors": _write(_FLAVORS, world.flavors),
        "reach": _write(_REACH, world.reach),
        "nodes": _write(_NODES, world.nodes.nodes),
        "types": world.nodes.types,
        "racks": list(world.nodes.by_rack),
        "layout": _draw_layout(world.layout),
        "jobs": _write(_JOBS, jobs.jobs),
        "placements": _write(_PLACEMENTS, jobs.placements),
        "counters": {name: getattr(jobs, name) for name in _COUNTERS},
        "job_queues": [[*key, number] for key, number in jobs.queues.items()],
        "size_sets": list(jobs.size_sets.places),
        "curves": [
            [start, last, curve.across_nodes, curve.across_racks]
            for curve, (start, last) in jobs.curves.places.items()
        ],
        "curve_room": len(jobs.curves.flat),
        "curve_limit": jobs.curves.limit,
    }
    columns = {f"f.{name}": jobs.f(name) for name in jobs.F} | {f"i.{name}": jobs.i(name) for name in jobs.I}
    return wrap(header, columns | {"speeds": jobs.curves.flat[: jobs.curves.used]})


def _draw_layout(layout: Layout) -> dict[str, Any]:
    return {
        "free": list(map(hex, layout.free)),
        "healthy": list(map(hex, layout.healthy)),
        "cpus_milli": layout.cpus_milli,
        "memory_mib": layout.memory_mib,
        "buckets": list(map(hex, layout.buckets)),
        "cards": [[i, gpu, *card] for (i, gpu), card in layout.cards.items()],
        "usable": hex(layout.usable),
    }


def restore(image: bytes) -> World:
    """The World that was drawn, with nothing in `past`."""
    header, arrays = unwrap(image)
    if header.get("v") != VERSION:
        raise CodecError(f"an image of the World has format {header.get('v')}, this version reads {VERSION}")
    try:
        return _restore(header, arrays)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise CodecError(f"an image of the World is damaged: {error!r}") from error


def _restore(header: dict[str, Any], arrays: dict[str, Any]) -> World:
    world = World()
    for gpu_type in header.get("types", ()):
        # Their order is not that of the nodes, if a node has changed its type; nor is that of the racks.
        world.nodes.know_type(gpu_type)
    world.nodes.by_rack = dict.fromkeys(header.get("racks", ()), 0)
    for node in _read(_NODES, header["nodes"]):
        world.nodes.add(node)
        world.layout.add(node)
    _restore_layout(world.layout, header["layout"])
    _restore_jobs(world.jobs, header, arrays)
    world.quota = _read(_QUOTA, header["quota"])
    world.flavors = _read(_FLAVORS, header["flavors"])
    world.version, world.now_s = header["version"], _read(_NUMBER, header["now_s"])
    world.cordoned, world.lost = _bits(header["cordoned"]), _bits(header["lost"])
    world.ill = {i: _bits(mask) for i, mask in header["ill"]}
    world.others = {i: Others(_bits(gpus), *rest) for i, gpus, *rest in header.get("others", ())}
    world.avoided = {job: Avoided(_bits(nodes), until_s) for job, nodes, until_s in header.get("avoided", ())}
    world.usage = _read(_USAGE, header.get("usage", ()))
    world.idle = _read(_IDLE, header.get("idle", ()))
    world.loads = _read(_LOADS, header.get("loads", ()))
    world.trials = _read(_TRIALS, header.get("trials", ()))
    world.reach = _read(_REACH, header["reach"])
    world._open_capacity = header["open_capacity"]
    world.policy = header.get("policy", "")
    world.progress = _read(_PROGRESS, header.get("progress", {}))
    world.jobs.outlooks = _read(OUTLOOKS, header.get("outlooks", ()))
    return world


def _restore_layout(layout: Layout, data: dict[str, Any]) -> None:
    layout.free = [_bits(mask) for mask in data["free"]]
    layout.healthy = [_bits(mask) for mask in data["healthy"]]
    layout.cpus_milli, layout.memory_mib = data["cpus_milli"], data["memory_mib"]
    layout.buckets = [_bits(nodes) for nodes in data["buckets"]]
    layout.cards = {(i, gpu): Card(*rest) for i, gpu, *rest in data["cards"]}
    layout.usable = _bits(data["usable"])
    layout.total_free = sum(mask.bit_count() for mask in layout.free)


def _restore_jobs(table: JobTable, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    # Numbers of queues, size sets and curves first: inserting a job finds them as they were.
    table.queues = {(namespace, name): number for namespace, name, number in header["job_queues"]}
    for sizes in header["size_sets"]:
        table.size_sets.add(tuple(sizes))
    _restore_curves(table.curves, header, arrays["speeds"])
    for job in _read(_JOBS, header["jobs"]):
        table.insert(job)
    table.curves.limit = header["curve_limit"]
    for letter, names, column_of in (("f", table.F, table.f), ("i", table.I, table.i)):
        for name in names:
            if f"{letter}.{name}" in arrays:
                column_of(name)[:] = arrays[f"{letter}.{name}"]
    table.short = {table.ids[row] for row in np.flatnonzero(table.i("gpus") != table.i("max")).tolist()}
    table.placements = _read(_PLACEMENTS, header["placements"])
    if len(table.placements) != table.n:
        raise CodecError(f"{table.n} jobs have {len(table.placements)} placements")
    for name in _COUNTERS:
        if name in header["counters"]:
            setattr(table, name, header["counters"][name])


def _restore_curves(pool: CurvePool, header: dict[str, Any], speeds: Any) -> None:
    pool.flat = np.zeros(header["curve_room"])
    pool.flat[: len(speeds)] = speeds
    pool.used = len(speeds)
    # No clearing up while jobs are inserted: it happens when it would have happened.
    pool.limit = len(speeds)
    values = speeds.tolist()
    for start, last, across_nodes, across_racks in header["curves"]:
        curve = SpeedCurve(tuple(values[start : start + last + 1]), across_nodes, across_racks)
        pool.places[curve] = (start, last)


def _bits(text: str) -> int:
    return int(text, 16)


def _write(form: Any, value: Any) -> Any:
    return form.write(value)


def _read(form: Any, value: Any) -> Any:
    return form.read(value)
