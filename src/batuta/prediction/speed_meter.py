"""How fast one job runs at each size, how far it is and what is left, from its reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from batuta.core.curve import SpeedCurve
from batuta.core.job import Job
from batuta.prediction.footprint import Footprint
from batuta.prediction.learned_scaling import LearnedScaling
from batuta.prediction.run_track import SKEW_S, RunTrack, Seen
from batuta.prediction.sample import News, Sample
from batuta.prediction.scaling import LONGEST_CURVE, Scaling, prepare
from batuta.prediction.size_record import SizeRecord, SizeSpeed
from batuta.prediction.telling import Telling
from batuta.prediction.transition_meter import TransitionMeter
from batuta.prediction.unit import BEYOND_ALL, LastSaid, Unit, reader_of


class SpeedMeter:
    """Measures one job. Told of runs and reports in the order in which they happen, it says what is new.

    - **Work** is counted in the best unit that the job reports (see `Unit`). Without a total there is no
      fraction and nobody knows what remains: the World keeps its own estimate.
    - **Time** is that of the reports. From the start of a run to its first report nothing is measured, and
      the first half minute after it counts only until there is something better.
    - A **total that changes with the size** (steps of larger batches) means the same work in other steps:
      what was measured is counted anew. At the same size it means that the job became longer or shorter.
    - **Until something is measured**, the job's own curve, work and restart time stand. `job` is the one that
      was submitted: with a curve from this meter as its prior it would learn from itself.
    """

    __slots__ = (
        "_ahead",
        "_before",
        "_footprint",
        "_learned",
        "_records",
        "_run",
        "_said",
        "_size_changed",
        "_telling",
        "_unit",
        "_waiting",
        "_work_s",
        "transitions",
    )

    def __init__(self, job: Job) -> None:
        self.transitions = TransitionMeter()
        """To be told when a checkpoint is asked for and made; all else it hears from here."""
        self._learned = LearnedScaling(job.curve, job.max)
        self._work_s = job.work_s
        self._records: dict[Footprint, SizeRecord] = {}
        self._footprint: Footprint | None = None
        """Of the current run, or the last one."""
        self._size_changed = False
        self._run: RunTrack | None = None
        self._before: float | None = None
        """How far the job was before the first report of the current run."""
        self._waiting: list[Sample] = []
        """Reports that came while there was no run: late ones of the last, or early ones of the next."""
        self._ahead: float | None = None
        """How far the job is by them."""
        self._unit: Unit | None = None
        self._said = LastSaid()
        self._telling = Telling(job.curve, job.restart_s)

    # ------------------------------------------------------------------------------------------ what happens

    def began(
        self, time_s: float, gpus: int, nodes: int = 1, *, racks: int = 1, gpu_speed: float = 1.0
    ) -> None:
        """A run at this size begins: its processes were started, or a running job has changed its members."""
        footprint = Footprint(gpus, min(nodes, 2), min(racks, 2), gpu_speed)
        if self._run is not None and (self._run.began_s, self._footprint) == (time_s, footprint):
            return
        waiting = self._leave_run()
        self._size_changed = self._footprint is not None and self._footprint.gpus != gpus
        self._footprint = footprint
        self._run = RunTrack(time_s, self._records.setdefault(footprint, SizeRecord()))
        self.transitions.started(time_s)
        self.add(waiting)

    def ended(self, time_s: float) -> None:
        """All processes of the run are gone. Reports from now on wait for a run that they belong to."""
        if self._run is not None:
            self._leave_run()
        self.transitions.stopped(time_s)

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes reports in, in the order in which they were written. Those known already change nothing."""
        run, unit = self._run, self._unit
        note, value_of = self._said.note, reader_of(unit)
        for sample in samples:
            value = value_of(sample)
            # Most reports lie within an open window, and only move its end.
            if (
                run is not None
                and value is not None
                and run.units < value < BEYOND_ALL
                and run.last_s <= sample.time_s < run.due_s
                and sample.rank == run.rank
            ):
                run.last_s, run.units = sample.time_s, value
                note(sample)
            else:
                self._take(sample)
                if unit is not self._unit:
                    run, unit, value_of = self._run, self._unit, reader_of(self._unit)

    def changed(self, job: Job) -> None:
        """The user changed the request: the curve has another end."""
        largest = min(job.max, LONGEST_CURVE)
        if largest != self._learned.largest:
            self._learned.largest = largest
            # The World may have gone back to the prior, where that is longer.
            self._telling.curve = self._learned.prior

    # ------------------------------------------------------------------------------------------ what is known

    @property
    def units(self) -> float | None:
        """How far the job is, in the unit that its progress is counted in."""
        run = self._run
        if run is not None and run.has_reported:
            return run.units
        return max((u for u in (self._before, self._ahead) if u is not None), default=None)

    @property
    def fraction(self) -> float | None:
        """The share of the work that is done; None without a total."""
        total, units = self._said.total(self._unit), self.units
        return None if total is None or units is None else min(1.0, units / total)

    def curve(self) -> SpeedCurve:
        """Speed by GPU count: measured, fitted, or the prior's shape."""
        scaling = self._scaling()
        return scaling.curve if scaling else self._learned.prior

    def speed(self) -> SizeSpeed | None:
        """Speed of the current run's size, or the last one's; None until measured."""
        record = self._records.get(self._footprint) if self._footprint else None
        return record.speed(self._said.units_per_epoch(self._unit)) if record else None

    def speeds(self) -> Mapping[Footprint, SizeSpeed]:
        """Speed at each size that was measured."""
        epoch = self._said.units_per_epoch(self._unit)
        found = {footprint: record.speed(epoch) for footprint, record in self._records.items()}
        return {footprint: speed for footprint, speed in found.items() if speed}

    def remaining_s(self) -> float | None:
        """Seconds left on one GPU of the reference type, as of the last report; None without a total.

        Divided by the World's speed for the size that the job runs at, it is the time that is really left
        there, even where the curve that the World goes by is a little off.
        """
        total, units, fraction = self._said.total(self._unit), self.units, self.fraction
        if total is None or units is None or fraction is None:
            return None
        one_gpu = self._one_gpu_rate(self._telling.curve)
        return (1.0 - fraction) * self._work_s if one_gpu is None else max(0.0, total - units) / one_gpu

    def news(self, now_s: float, *, at_last: bool = False) -> News | None:
        """What is worth an event; None when too little has changed since the last.

        `at_last`: nothing more will come of this run, so whatever has changed is worth one.
        """
        if not self._said.is_news:
            return None
        fraction, telling, said = self.fraction, self._telling, self._said
        curve = telling.new_curve(self.curve())
        if curve is None and not at_last and not telling.is_due(now_s, fraction):
            return None
        said.is_news = False
        telling.told(now_s, fraction)
        speed = self.speed()
        return News(
            fraction=fraction,
            step=said.step,
            total_steps=said.total_steps,
            epoch=said.epoch,
            loss=said.loss,
            step_s=speed.step_s if speed else None,
            samples_per_s=speed.samples_per_s if speed else None,
            epoch_s=speed.epoch_s if speed else None,
            remaining_s=self.remaining_s(),
            curve=curve,
            restart_s=telling.new_restart_s(self.transitions.restart_s),
        )

    # ------------------------------------------------------------------------------------------- how it works

    def _take(self, sample: Sample) -> None:
        """The long way of a report: everything but one more step within an open window."""
        if not math.isfinite(sample.time_s):
            return
        self._choose_unit(sample)
        run, said = self._run, self._said
        units = self._unit.count(sample) if self._unit else None
        if units is None:
            if sample.time_s >= said.time_s:
                said.note(sample)
            return
        if run is None:
            self._waiting.append(sample)
            self._ahead = units if self._ahead is None else max(self._ahead, units)
            said.note(sample)
            return
        if sample.time_s < run.began_s - SKEW_S:
            self._go_further(sample, units)
            return
        seen = run.see(sample, units)
        if seen is Seen.NOTHING:
            # The same step once more may still bring a loss or a metric with it.
            if units == run.units and sample.rank == run.rank and sample.time_s >= said.time_s:
                said.note(sample)
            return
        total = said.total(self._unit)
        said.note(sample)
        if seen is Seen.FIRST and self._size_changed:
            self._count_anew(total, said.total(self._unit))
        elif seen is Seen.SECOND:
            self._arrive(run)
        elif seen is Seen.FELL_BACK:
            self._lose(run.lost_units)

    def _go_further(self, sample: Sample, units: float) -> None:
        """Takes in a report from before the run: it says how far the job was, and nothing about speed."""
        has_reported = self._run is not None and self._run.has_reported
        if not has_reported and (self._before is None or units > self._before):
            self._before = units
            self._said.note(sample)

    def _choose_unit(self, sample: Sample) -> None:
        """Takes a better unit as soon as the job reports in it, and forgets what was measured in another."""
        known = self._unit
        better = self._said.better_unit(sample, known)
        if better is None:
            return
        self._unit = better
        if known is not None and known.field != better.field:
            self._before = self._ahead = None
            self._learned.forget()
            self._records = {footprint: SizeRecord() for footprint in self._records}
            if self._run is not None and self._footprint is not None:
                self._run = RunTrack(self._run.began_s, self._records[self._footprint])

    def _count_anew(self, old_total: float | None, new_total: float | None) -> None:
        if old_total and new_total and old_total != new_total:
            factor = new_total / old_total
            for record in self._records.values():
                record.rescale(factor)
            if self._before is not None:
                self._before *= factor

    def _arrive(self, run: RunTrack) -> None:
        """Finds out when a run's work really began: at its first report some of it was done already."""
        before, first, gap = self._before or 0.0, run.first_units, run.gap_units
        advance = first - before if 0 < first - before < gap else gap
        self.transitions.progressed(max(run.began_s, run.first_s - run.gap_s * advance / gap))
        if self._before is not None and first <= self._before:
            self._lose(self._before - first + gap)

    def _lose(self, units: float) -> None:
        one_gpu, total = self._one_gpu_rate(self.curve()), self._said.total(self._unit)
        if one_gpu is not None:
            self.transitions.lost(units / one_gpu)
        elif total:
            self.transitions.lost(min(1.0, units / total) * self._work_s)

    def _leave_run(self) -> list[Sample]:
        """Ends the run, if there is one; returns the reports that waited for the next."""
        if self._run is not None and self._run.has_reported:
            self._before = self._run.units
        waiting, self._waiting, self._ahead, self._run = self._waiting, [], None, None
        return waiting

    def _scaling(self) -> Scaling | None:
        return self._learned.of(self._records, self._said.noise_scale)

    def _one_gpu_rate(self, curve: SpeedCurve) -> float | None:
        """Units per second on one GPU of the reference type, such that the curve is right for this size."""
        footprint = self._footprint
        rate = self._records[footprint].rate() if footprint else None
        if footprint is None or rate is None:
            scaling = self._scaling()
            return scaling.units_per_s if scaling else None
        speed = (
            curve.at(footprint.gpus) * curve.spread(footprint.nodes, footprint.racks) * footprint.gpu_speed
        )
        return rate / speed if speed > 0 else None


def fit_together(meters: Iterable[SpeedMeter]) -> None:
    """Fits the curves of many jobs side by side, before each is asked for its news: it is much faster."""
    prepare(one for meter in meters for one in meter._learned.to_fit(meter._records, meter._said.noise_scale))
