"""The jobs that are alive, one row each, as columns: what `decide` compares by the thousand.

Rows are always dense and in the order (submit time, id). So a column of all jobs is a slice, not a copy, and
any stable sort ends its ties in that order. The price is a memory move when a job leaves, which is nothing
beside a cycle.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batuta.core.arrays import BoolArray, FloatArray, IntArray, with_own_containers
from batuta.core.cluster import Placement
from batuta.core.curve import CurvePool, Curves, LegalSizes, SizeSetPool, SpeedCurve
from batuta.core.job import DesiredState, Job, JobId
from batuta.core.phases import Outlook

_NAN = float("nan")
CHANGES_AT_ONCE = 6.0  # changes that a new job has; see eligibility.py


class Beside(NamedTuple):
    """GPUs that are asked for, and the CPU and memory beside them."""

    gpu_percent: int
    cpus_milli: int
    memory_mib: int

    def plus(self, job: Job, by: int) -> Beside:
        """With one more such job, or one less (-1)."""
        percent = 100 * job.size if job.share is None else job.share.compute_percent
        return Beside(
            self.gpu_percent + by * percent,
            self.cpus_milli + by * job.size * job.cpus_milli_per_gpu,
            self.memory_mib + by * job.size * job.memory_mib_per_gpu,
        )


class Phase(IntEnum):
    """What the World knows of a living job."""

    WAITING = 0
    STARTING = 1
    RUNNING = 2
    RESIZING = 3
    BROKEN = 4  # it lost some of its GPUs and holds the others until the next cycle
    STOPPING = 5  # it is being ended for good and has no GPUs any more


_PHASES = tuple(Phase)
_WISHES = tuple(DesiredState)
# Plain numbers for the hot path: the lookup of an enum's member costs as much as a small array operation.
_STARTING, _RESIZING, _BROKEN = int(Phase.STARTING), int(Phase.RESIZING), int(Phase.BROKEN)
_MOVES = tuple(int(phase in (Phase.STARTING, Phase.RESIZING)) for phase in Phase)


class _FloatColumn:
    """A column of floats, a row for each living job; columns are numbered as they are declared."""

    names: ClassVar[list[str]] = []  # by number: the name under which snapshots store a column

    def __set_name__(self, owner: type[JobColumns], name: str) -> None:
        self._number = _number_in(self.names, name)

    def __get__(self, table: JobColumns, owner: type[JobColumns]) -> FloatArray:
        return table._f[self._number, : table.n]


class _IntColumn:
    """A column of integers, likewise."""

    names: ClassVar[list[str]] = []

    def __init__(self, stored: str = "") -> None:
        self._stored = stored

    def __set_name__(self, owner: type[JobColumns], name: str) -> None:
        self._number = _number_in(self.names, self._stored or name)

    def __get__(self, table: JobColumns, owner: type[JobColumns]) -> IntArray:
        return table._i[self._number, : table.n]


_FLOATS, _INTS = _FloatColumn.names, _IntColumn.names


def _number_in(names: list[str], name: str) -> int:
    """The number of a column. It is asked for twice: a dataclass with slots is made anew."""
    if name not in names:
        names.append(name)
    return names.index(name)


@dataclass(slots=True, eq=False, repr=False)
class JobColumns:
    """Columns of all living jobs, as views: what is written into one is in the table."""

    _f: FloatArray = field(default_factory=lambda: np.zeros((len(_FLOATS), 64)))
    _i: IntArray = field(default_factory=lambda: np.zeros((len(_INTS), 64), dtype=np.int64))
    n: int = 0

    submit_s = _FloatColumn()
    first_start_s = _FloatColumn()
    last_start_s = _FloatColumn()
    last_stop_s = _FloatColumn()
    last_resize_s = _FloatColumn()
    tier_since_s = _FloatColumn()
    remaining_s = _FloatColumn()
    rate = _FloatColumn()  # work that each job does in a second, as it is believed
    anchor_s = _FloatColumn()  # when `remaining_s` was true
    attained_gpu_s = _FloatColumn()
    service_gpu_s = _FloatColumn()
    restart_s = _FloatColumn()
    not_before_s = _FloatColumn()
    done_s = _FloatColumn()
    crowd_before_s = _FloatColumn()
    run_s = _FloatColumn()
    changed_s = _FloatColumn()
    changes_left = _FloatColumn()

    # What `explain` needs comes first, what a request fills comes next, so that each is one block.
    held = _IntColumn(stored="gpus")  # GPUs that each job has, or replicas of a CPU-only one
    phase = _IntColumn()
    size = _IntColumn()
    min = _IntColumn()
    max = _IntColumn()
    step = _IntColumn()
    size_set = _IntColumn()
    priority = _IntColumn()
    queue = _IntColumn()
    curve_start = _IntColumn()
    curve_last = _IntColumn()
    tier = _IntColumn()
    gpu_type = _IntColumn()
    restarts = _IntColumn()
    lost_gpus = _IntColumn()
    is_narrow = _IntColumn(stored="narrow")  # 1 for a job to which the open nodes leave fewer GPUs than it wants
    wish = _IntColumn()
    changed_generation = _IntColumn()
    is_cpu_only = _IntColumn(stored="cpu_only")  # 1 for a job without GPUs

    def copied(self) -> JobColumns:
        """A copy of all columns, which no event changes."""
        return JobColumns(self._f[:, : self.n].copy(), self._i[:, : self.n].copy(), self.n)

    def stored_columns(self) -> dict[str, NDArray[Any]]:
        """Return all columns as views, by the names under which snapshots store them."""
        floats = {f"f.{name}": self._f[number, : self.n] for number, name in enumerate(_FLOATS)}
        return floats | {f"i.{name}": self._i[number, : self.n] for number, name in enumerate(_INTS)}

    def wish_of(self, row: int) -> DesiredState:
        return _WISHES[self.wish.item(row)]

    def run_start_s(self, row: int) -> float | None:
        """When a job was last started or resized; None for never."""
        begun_s = float(np.fmax(self.last_start_s[row], self.last_resize_s[row]))
        return None if math.isnan(begun_s) else begun_s


_FIRST_START, _LAST_START, _LAST_RESIZE = map(_FLOATS.index, ("first_start_s", "last_start_s", "last_resize_s"))
_LEFT, _RATE, _ANCHOR = map(_FLOATS.index, ("remaining_s", "rate", "anchor_s"))
_ATTAINED, _SERVICE = map(_FLOATS.index, ("attained_gpu_s", "service_gpu_s"))
_NOT_BEFORE, _DONE, _RUN = map(_FLOATS.index, ("not_before_s", "done_s", "run_s"))
_HELD, _PHASE, _SIZE, _MIN, _MAX = map(_INTS.index, ("gpus", "phase", "size", "min", "max"))
_CURVE_START, _CURVE_LAST = map(_INTS.index, ("curve_start", "curve_last"))
_GPU_TYPE, _RESTARTS, _LOST = map(_INTS.index, ("gpu_type", "restarts", "lost_gpus"))
_NARROW, _WISH, _CPU_ONLY = map(_INTS.index, ("narrow", "wish", "cpu_only"))


@dataclass(slots=True, eq=False, repr=False)
class JobTable(JobColumns):
    """The living jobs: their columns, and what is known of all of them together beside these."""

    _keys: list[tuple[float, int, JobId]] = field(default_factory=list)
    ids: list[JobId] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    placements: list[Placement | None] = field(default_factory=list)
    key_of: dict[JobId, tuple[float, int, JobId]] = field(default_factory=dict)
    """The sort key of a job. A bisection finds its row, so no row number has to be kept up to date."""
    curves: CurvePool = field(default_factory=CurvePool)
    size_sets: SizeSetPool = field(default_factory=SizeSetPool)
    outlooks: dict[JobId, Outlook] = field(default_factory=dict)  # how speeds will change, of the jobs that said so
    queues: dict[tuple[str, str], int] = field(default_factory=dict)
    """By namespace and name: the number in the column `queue`."""
    picky: int = 0  # jobs that take shares of a GPU or care for its type; without any, allocation has less to do
    sharing: int = 0  # jobs that take a share of a GPU
    type_lists: dict[tuple[tuple[str, float], ...], int] = field(default_factory=dict)
    """By the GPU types that jobs accept, with their speeds (empty: any): how many jobs accept these."""
    irregular: int = 0  # jobs that may not have every size between `min` and `max`
    checkpoints: dict[JobId, float | None] = field(default_factory=dict)
    """Jobs that were seen to save: when the last checkpoint was complete; None before the first one, of
    a job whose script saves when it is asked."""
    cpu_only: int = 0  # jobs that hold no GPU. Their sizes, and what they have in the column `gpus`, count replicas.
    unsaved: set[JobId] = field(default_factory=set)
    """Jobs that a stop would cost all that they have done: those of one size that never save, and elastic
    ones that are not declared restartable and of which no checkpoint was seen."""
    elastic: int = 0  # jobs that may have more than their `min`
    beside: Beside = field(default_factory=lambda: Beside(0, 0, 0))
    """What all jobs together ask for, of those that ask for more than GPUs."""
    total_max: int = 0  # what all jobs together would have if each had its `max`, …
    short: set[JobId] = field(default_factory=set)  # … and which ones have something else now
    moving: int = 0  # jobs that are just starting or resizing
    broken: int = 0  # jobs that lost some of their GPUs
    narrow: int = 0  # jobs for which the open nodes have fewer GPUs than they want, even if they were alone
    held_back: int = 0  # jobs whose user does not want them to run, or that wait after a failure
    crowd_s: float = 0.0  # seconds that jobs were here, summed over all that ever were; what a share of the cluster was

    def outlook(self) -> IntArray:
        """A copy of gpus, phase, size, min and max, in this order."""
        return self._i[: _MAX + 1, : self.n].copy()

    def phase_of(self, row: int) -> Phase:
        """To compare a NumPy integer with an enum takes a hundred times as long as this."""
        return _PHASES[self._i.item(_PHASE, row)]

    def set_phase(self, row: int, phase: Phase) -> None:
        """Changes what is known of a job, and keeps count of those in motion."""
        before = self._i.item(_PHASE, row)
        if before != phase:
            self.moving += _MOVES[phase] - _MOVES[before]
            self.broken += (phase == _BROKEN) - (before == _BROKEN)
            self._i[_PHASE, row] = phase

    def set_gpus(self, row: int, gpus: int) -> None:
        """Notes how many GPUs a job has, and whether that is its `max`."""
        self._i[_HELD, row] = gpus
        if gpus == self._i.item(_MAX, row):
            self.short.discard(self.ids[row])
        else:
            self.short.add(self.ids[row])

    def set_narrow(self, row: int, narrow: bool) -> None:
        """Notes whether a job wants more than the open nodes could give to it, and keeps count."""
        if narrow != self._i.item(_NARROW, row):
            self.narrow += 1 if narrow else -1
            self._i[_NARROW, row] = narrow

    def hold_back(self, row: int, wish: DesiredState | None = None, not_before_s: float | None = None) -> None:
        """Changes whether and when a job may run, and keeps count; None leaves it as it is."""
        wishes, times = self._i[_WISH], self._f[_NOT_BEFORE]
        before = int(wishes[row] != 0 or times[row] > 0)
        if wish is not None:
            wishes[row] = wish
        if not_before_s is not None:
            times[row] = not_before_s
        self.held_back += int(wishes[row] != 0 or times[row] > 0) - before

    def in_motion(self) -> BoolArray | None:
        """The jobs that are just starting or resizing; None when there are none."""
        if not self.moving:
            return None
        phase = self.phase
        found: BoolArray = (phase == _STARTING) | (phase == _RESIZING)
        return found

    def gpus(self) -> IntArray:
        """By row: the GPUs that it holds; 0 for a CPU-only job, whatever its replicas."""
        return np.where(self.is_cpu_only, 0, self.held) if self.cpu_only else self.held

    def without_gpus(self) -> BoolArray | None:
        """The CPU-only jobs; None when there are none."""
        if not self.cpu_only:
            return None
        found: BoolArray = self.is_cpu_only != 0
        return found

    def is_broken(self) -> BoolArray | None:
        """The jobs that lost some of their GPUs; None when there are none."""
        if not self.broken:
            return None
        found: BoolArray = self.phase == _BROKEN
        return found

    def __contains__(self, job: JobId) -> bool:
        return job in self.key_of

    def row(self, job: JobId) -> int:
        return bisect_left(self._keys, self.key_of[job])

    def insert(self, job: Job) -> int:
        if self.n == self._f.shape[1]:
            self._f, self._i = _with_room(self._f), _with_room(self._i)
        key = (job.submit_s, job.sequence, job.id)
        row = bisect_left(self._keys, key)
        if row < self.n:
            self._f[:, row + 1 : self.n + 1] = self._f[:, row : self.n]
            self._i[:, row + 1 : self.n + 1] = self._i[:, row : self.n]
        self._keys.insert(row, key)
        self.ids.insert(row, job.id)
        self.jobs.insert(row, job)
        self.placements.insert(row, None)
        self.key_of[job.id] = key
        self.n += 1
        self._f[:, row] = (
            *(job.submit_s, _NAN, _NAN, _NAN, _NAN, job.submit_s),
            *(job.work_s, 0.0, job.submit_s, 0.0, 0.0, job.restart_s, 0.0, 0.0, self.crowd_s, 0.0),
            *(job.submit_s, CHANGES_AT_ONCE),
        )
        self._i[:, row] = (0, 0, *self._request(job), 0, -1, 0, 0, 0, 0, -1, job.cpu_only)
        self._count(job, 1)
        self.set_gpus(row, 0)
        return row

    def describe(self, row: int, job: Job) -> None:
        """Notes that the user changed what the job asks for."""
        self._count(self.jobs[row], -1)
        self._count(job, 1)
        self.jobs[row] = job
        self._i[_SIZE : _CURVE_LAST + 1, row] = self._request(job)
        self.set_gpus(row, self._i.item(_HELD, row))

    def _count(self, job: Job, by: int) -> None:
        """Keeps the sums over all jobs up to date when one comes (1) or goes (-1)."""
        if job.cpu_only:
            self.cpu_only += by
        else:
            self.total_max += by * job.max
        self.elastic += by * (job.max > job.min)
        self.picky += by * (job.share is not None or bool(job.gpu_types))
        self.sharing += by * (job.share is not None)
        self._count_types(job.gpu_types, by)
        self.irregular += by * (job.sizes is not None or job.gpus_per_replica > 1)
        if not job.cpu_only and (job.cpus_milli_per_gpu or job.memory_mib_per_gpu):
            self.beside = self.beside.plus(job, by)
        if by > 0 and (job.is_lost_by_a_stop or (job.keeps_size_until_saved and job.id not in self.checkpoints)):
            self.unsaved.add(job.id)
        else:
            self.unsaved.discard(job.id)

    def _count_types(self, accepted: tuple[tuple[str, float], ...], by: int) -> None:
        count = self.type_lists.get(accepted, 0) + by
        if count:
            self.type_lists[accepted] = count
        else:
            del self.type_lists[accepted]

    def note_checkpoint(self, row: int, saved_s: float | None) -> None:
        """Notes that a job saves; an older time than the known one changes nothing."""
        job = self.jobs[row]
        before_s = self.checkpoints.get(job.id)
        if before_s is None or (saved_s is not None and saved_s > before_s):
            self.checkpoints[job.id] = saved_s
        if not job.is_lost_by_a_stop:
            self.unsaved.discard(job.id)

    def _request(self, job: Job) -> tuple[int, ...]:
        """The columns from `size` to `curve_last`."""
        queue = self.queues.setdefault((job.namespace, job.queue), len(self.queues))
        size_set = self.size_sets.add(job.sizes)
        start, last = self._add_curve(job.curve)
        sizes = (job.size, job.min, job.max, job.gpus_per_replica or 1, size_set)
        return (*sizes, job.priority, queue, start, last)

    def set_curve(self, row: int, curve: SpeedCurve) -> None:
        self.jobs[row] = replace(self.jobs[row], curve=curve)
        self._i[_CURVE_START : _CURVE_LAST + 1, row] = self._add_curve(curve)

    def _add_curve(self, curve: SpeedCurve) -> tuple[int, int]:
        """Jobs report new curves as long as they run: those that no job has any more are given up in time."""
        if self.curves.used > self.curves.limit:
            self.curves = CurvePool()
            for row, job in enumerate(self.jobs):
                self._i[_CURVE_START : _CURVE_LAST + 1, row] = self.curves.add(job.curve)
            self.curves.limit = max(self.curves.limit, 4 * self.curves.used)
        return self.curves.add(curve)

    def remove(self, job: JobId) -> None:
        row = self.row(job)
        self._count(self.jobs[row], -1)
        self.short.discard(job)
        self.outlooks.pop(job, None)
        self.checkpoints.pop(job, None)
        self.set_phase(row, Phase.WAITING)
        self.set_narrow(row, False)
        self.hold_back(row, DesiredState.RUN, 0.0)
        del self._keys[row], self.ids[row], self.jobs[row], self.placements[row], self.key_of[job]
        if row < self.n // 2:
            # The shorter side moves: old jobs, which are the first to end, have few before them.
            self._f[:, 1 : row + 1] = self._f[:, :row]
            self._i[:, 1 : row + 1] = self._i[:, :row]
            self._f, self._i = self._f[:, 1:], self._i[:, 1:]
        else:
            self._f[:, row : self.n - 1] = self._f[:, row + 1 : self.n]
            self._i[:, row : self.n - 1] = self._i[:, row + 1 : self.n]
        self.n -= 1

    def hold(self, row: int, placement: Placement | None, gpu_type: int, phase: Phase, lost_gpus: int = 0) -> None:
        """Notes which GPUs a job has, and that it does nothing with them yet."""
        self.placements[row] = placement
        self._f[_RATE, row] = 0.0
        self._i[_GPU_TYPE, row], self._i[_LOST, row] = gpu_type, lost_gpus
        self.set_gpus(row, 0 if placement is None else placement.units)
        self.set_phase(row, phase)

    def note_start(self, row: int, now_s: float, resized: bool) -> None:
        """Counts a start, or a resize or move, of a job."""
        f = self._f
        if math.isnan(f.item(_FIRST_START, row)):
            f[_FIRST_START, row] = now_s
        else:
            self._i[_RESTARTS, row] += 1
        if resized:
            f[_LAST_RESIZE, row] = now_s
        else:
            f[_LAST_START, row], f[_SERVICE, row] = now_s, 0.0

    def settle(self, row: int, now_s: float) -> None:
        """Books progress and service up to now, before the rate or the GPUs of a job change."""
        f = self._f
        cell = f.item  # a plain number: arithmetic with NumPy's own takes several times as long
        elapsed_s = now_s - cell(_ANCHOR, row)
        if elapsed_s > 0:
            f[_ANCHOR, row] = now_s
            worked_s = cell(_RATE, row) * elapsed_s
            f[_LEFT, row] = max(0.0, cell(_LEFT, row) - worked_s)
            f[_DONE, row] = cell(_DONE, row) + worked_s
            # A job that starts may wait for another one to leave its GPUs: it does not run yet.
            if self.placements[row] is not None and self._i.item(_PHASE, row) != _STARTING:
                f[_RUN, row] = cell(_RUN, row) + elapsed_s
            if self._i.item(_CPU_ONLY, row):
                return
            served = self._i.item(_HELD, row) * elapsed_s
            f[_ATTAINED, row] = cell(_ATTAINED, row) + served
            f[_SERVICE, row] = cell(_SERVICE, row) + served

    def legal_sizes(self) -> LegalSizes:
        """What each job may have, read-only. Its four columns lie side by side and are cut out at once."""
        columns = self._i[_MIN : _MIN + 4, : self.n]
        columns.flags.writeable = False
        low, high, step, listed = columns
        regular, rigid = not self.irregular, not self.elastic
        return LegalSizes(low, high, step, listed, self.size_sets.matrix, regular, rigid)

    def speed(self) -> Curves:
        return Curves(self.curves.flat, self.curve_start, self.curve_last)

    def fork(self) -> JobTable:
        twin = with_own_containers(self)
        twin.curves, twin.size_sets = with_own_containers(self.curves), with_own_containers(self.size_sets)
        return twin


def _with_room(table: NDArray[Any]) -> NDArray[Any]:
    """The same columns with room for twice as many rows, and at least for 64."""
    rows = table.shape[1]
    grown = np.zeros((len(table), max(2 * rows, 64)), dtype=table.dtype)
    grown[:, :rows] = table
    return grown
