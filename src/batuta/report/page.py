"""The report as one HTML page that needs nothing but a browser: no network, no script to be readable."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from pathlib import Path
from typing import TypeAlias

from batuta import __version__
from batuta.backends.sim.result import RunResult
from batuta.report.comparison import Study, build_study, explanation, headline
from batuta.report.distribution_charts import application_bars, fairness_cdf, find_applications, jct_cdf, policy_bars
from batuta.report.formatting import asset, count, duration, escape, html_page, join, percent, significant, tag
from batuta.report.metrics import METRICS
from batuta.report.plot import theme_css
from batuta.report.result_files import write_text
from batuta.report.tables import ratio_table, summary_table, workload_table
from batuta.report.timeline_charts import jobs_over_time, queue_lines, switch_css, utilisation_strips


@dataclass(frozen=True, slots=True)
class Provenance:
    """How the report was made. No clock is read: the caller passes the time."""

    command: str = ""
    made_at: str = ""
    version: str = __version__


def _provenance_section(study: Study, origin: Provenance) -> str:
    """Workloads, clusters, seeds, version and command line; notes of runs; what the columns mean."""
    runs = study.runs
    low, high = (find(len(run.jobs) for run in runs) for find in (min, max))
    events = count(sum(run.events for run in runs), "event")
    cpu = duration(math.fsum(run.cpu_s for run in runs))
    facts = [
        ("Workload", _listed(run.workload for run in runs)),
        ("Jobs", f"{low:,} per run" if low == high else f"{low:,}–{high:,} per run"),
        ("Cluster", ", ".join(dict.fromkeys(f"{run.cluster} ({count(run.gpus, 'GPU')})" for run in runs))),
        ("Policies", ", ".join(dict.fromkeys(run.policy for run in runs))),
        ("Seeds", _listed(run.seed for run in runs)),
        ("Runs", f"{count(len(runs), 'run')}, {events}, {cpu} of CPU time"),
        ("Batuta", origin.version),
    ]
    if len(runs) == 1 and runs[0].step_ms:
        steps = ", ".join(f"{name} {significant(ms)}" for name, ms in runs[0].step_ms.items())
        facts.append(("Decision cycle", f"{len(runs[0].decide_ms):,} cycles; mean of each step in ms: {steps}"))
    if origin.made_at:
        facts.append(("Made at", origin.made_at))
    parts = [_definitions(facts)]
    if origin.command:
        parts.append(tag("pre", tag("code", escape(origin.command)), tabindex=0))
    if notes := _notes(study):
        parts += [tag("h3", "Notes of the runs"), tag("ul", *(tag("li", escape(note)) for note in notes))]
    meanings = [(f"{m.group} {m.label}".strip(), m.meaning) for m in METRICS]
    parts.append(tag("details", tag("summary", "What the columns mean"), _definitions(meanings)))
    return "".join(parts)


def _notes(study: Study, most: int = 20) -> list[str]:
    """Return the notes of the runs, equal ones once."""
    found: dict[str, list[str]] = {}
    for run in study.runs:
        for note in run.notes:
            found.setdefault(note, []).append(run.policy)
    notes = [f"{', '.join(dict.fromkeys(policies))}: {note}" for note, policies in found.items()]
    return notes if len(notes) <= most else [*notes[:most], f"… and {len(notes) - most} more"]


def _listed(values: Iterable[object], most: int = 12) -> str:
    names = [str(value) for value in dict.fromkeys(values)]
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, … ({len(names)})"


def _definitions(entries: Sequence[tuple[str, str]]) -> str:
    return tag("dl", *(tag("dt", escape(term)) + tag("dd", escape(text)) for term, text in entries))


Figure: TypeAlias = Callable[[str, str], str]  # puts a chart and its caption into a numbered figure


def write_report(
    path: str | Path, runs: Sequence[RunResult], *, baseline: str | None = None, origin: Provenance | None = None
) -> None:
    """Write the report of one run or many to a file, whole or not at all."""
    write_text(path, render_report(runs, baseline=baseline, origin=origin))


def render_report(runs: Sequence[RunResult], *, baseline: str | None = None, origin: Provenance | None = None) -> str:
    """Return the page for one run or a comparison of many; the same runs give the same bytes."""
    about = build_study(runs, baseline)
    title = headline(about.comparison)
    body = tag(
        "body",
        _header(about, title),
        tag("main", _tiles(about), *_sections(about, origin or Provenance())),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", asset("report.js")),
    )
    style = join((theme_css(), asset("style.css"), switch_css(len(about.shown_runs))))
    # Only this script may run, so that even a mistake in escaping could not start another.
    digest = base64.b64encode(hashlib.sha256(asset("report.js").encode()).digest()).decode()
    return html_page(title, style, f"; script-src 'sha256-{digest}'", body)


def _header(about: Study, title: str) -> str:
    rows, pairs = about.comparison.rows, about.comparison.pairs
    workloads = list(dict.fromkeys(pair[0] for pair in pairs))
    seeds = len(dict.fromkeys(pair[2] for pair in pairs))
    parts = [
        count(len(rows), "policy").replace("policys", "policies") if len(rows) > 1 else "Simulation",
        workloads[0] if len(workloads) == 1 else count(len(workloads), "workload"),
        count(seeds, "seed") if seeds > 1 else f"seed {pairs[0][2]}",
        ", ".join(dict.fromkeys(pair[1] for pair in pairs)),
    ]
    text = tag("p", escape(" ".join(explanation(about.comparison))), class_="lead-text")
    warning = ""
    if names := ", ".join(dict.fromkeys(run.policy for run in about.runs if not run.complete)):
        text = f"Stopped before all jobs were over: {names}. Averages are over the jobs that finished."
        warning = tag("p", escape(text), class_="warning", role="note")
    return tag(
        "header",
        tag("p", tag("b", "Batuta"), escape(" · " + " · ".join(parts)), class_="kicker"),
        tag("button", "◐ theme", id="theme", type="button", hidden=True, title="light, dark, or as the system"),
        tag("h1", escape(title)),
        text if explanation(about.comparison) else "",
        warning,
    )


def _tiles(about: Study) -> str:
    """The four or six most important numbers."""
    rows = about.comparison.rows
    meant = {metric.key: metric for metric in METRICS}
    if len(rows) == 1:
        row = rows[0]
        chosen = (
            ("Mean JCT", duration(row.values["jct_mean_s"])),
            ("99th percentile", duration(row.values["jct_p99_s"])),
            ("Mean wait", duration(row.values["wait_mean_s"])),
            ("Makespan", duration(row.values["makespan_s"])),
            ("GPUs used", percent(row.values["gpu_utilisation"])),
            ("Worst fairness ρ", significant(row.values["fairness_max"])),
        )
        return tag("div", *(_tile(name, value, "", "") for name, value in chosen), class_="tiles")
    tiles = []
    for key, name, show in (
        ("jct_mean_s", "Shortest mean JCT", duration),
        ("jct_p99_s", "Shortest 99th percentile", duration),
        ("fairness_max", "Fairest to its worst-off job", lambda value: f"ρ {significant(value)}"),
        ("gpu_utilisation", "Most GPUs in use", percent),
    ):
        best = [row for row in rows if key in row.best]
        if best:
            who = best[0].policy + (f" and {len(best) - 1} more" if len(best) > 1 else "")
            style = about.styles[best[0].policy]
            tiles.append(_tile(name, show(best[0].values[key]), who, style, meant[key].meaning))
    return tag("div", *tiles, class_="tiles")


def _tile(name: str, value: str, who: str, style: str, meaning: str = "") -> str:
    mark = tag("span", class_=f"swatch {style}") if style else ""
    return tag(
        "div",
        tag("span", escape(name), class_="tile-name"),
        tag("b", escape(value)),
        tag("span", mark, escape(who), class_="tile-who") if who else "",
        class_="tile",
        title=meaning or None,
    )


def _sections(about: Study, origin: Provenance) -> list[str]:
    """The chapters, with figures numbered through."""
    figures = numbers(1)

    def figure(picture: str, caption: str) -> str:
        text = f"<b>Figure {next(figures)}.</b> {escape(caption)}"
        return tag("figure", tag("div", picture, class_="plot"), tag("figcaption", text))

    return [
        _section("Summary", summary_table(about), *_more_tables(about)),
        _section("Completion times and fairness", *_completion(about, figure)),
        _section("The cluster over time", *_cluster(about, figure)),
        _section("Jobs over time", jobs_over_time(about, find_applications(about.shown_runs), next(figures))),
        _section("How this was made", _provenance_section(about, origin)),
    ]


def _section(title: str, *content: str) -> str:
    return tag("section", tag("h2", escape(title)), *content)


def _more_tables(about: Study) -> list[str]:
    tables = []
    pairs = about.comparison.pairs
    if len(about.comparison.rows) > 1 and len(pairs) > 1:
        name = f"All ratios to {about.comparison.baseline} with confidence intervals"
        tables.append(tag("details", tag("summary", escape(name)), ratio_table(about)))
    if len({pair[0] for pair in pairs}) > 1:
        tables.append(tag("details", tag("summary", "Mean JCT by workload"), workload_table(about)))
    return tables


def _completion(about: Study, figure: Figure) -> list[str]:
    comparison = about.comparison
    several = len(comparison.rows) > 1
    pooled = f" Jobs of all {len(comparison.pairs)} runs of a policy together." if len(comparison.pairs) > 1 else ""
    parts = []
    if several:
        caption = (
            "Job completion time (JCT, submission to end) by policy, best first. Right: mean JCT"
            f" relative to {comparison.baseline}, paired by workload and seed; left of 1 is faster."
        )
        parts.append(figure(policy_bars(about), caption))
    elif len(about.runs) == 1:
        applications = find_applications(about.runs)
        if len(applications.names) > 1:
            parts.append(figure(application_bars(about.runs[0], applications), "JCT by application."))
    better = " Further up and left is better." if several else ""
    done = figure(jct_cdf(about), f"Share of the submitted jobs that were done within a time.{better}{pooled}")
    fair = figure(
        fairness_cdf(about),
        "Finish-time fairness ρ: JCT over the time that a fair share of the cluster would have taken."
        f" Jobs right of 1 would have been better off with their fair share.{pooled}",
    )
    return [*parts, tag("div", done, fair, class_="pair")]


def _cluster(about: Study, figure: Figure) -> list[str]:
    strips = "0 to 100 %"
    if len(about.shown_runs) > 1:
        strips = "one strip per policy; a strip ends when its last job is over"
    used = f"Share of the GPUs that jobs hold ({strips}), and the mean over the run at the right.{about.drawn_for}"
    waiting = f"Jobs that wait without GPUs, preempted ones included.{about.drawn_for}"
    return [figure(utilisation_strips(about), used), figure(queue_lines(about), waiting)]
