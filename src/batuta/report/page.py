"""The report as one HTML page that needs nothing but a browser: no network, no script to be readable."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import count as numbers
from pathlib import Path
from typing import TypeAlias

from batuta.backends.sim.result import RunResult
from batuta.report import files, palette
from batuta.report.charts.applications import application_bars, find_applications
from batuta.report.charts.bars import policy_bars
from batuta.report.charts.cdf import fairness_cdf, jct_cdf
from batuta.report.charts.over_time import queue_lines, utilisation_strips
from batuta.report.headline import explanation, headline
from batuta.report.jobs_over_time import jobs_over_time, switch_css
from batuta.report.markup import escape, join, tag
from batuta.report.metrics import METRICS
from batuta.report.origin import Origin, origin_section
from batuta.report.study import Study, study
from batuta.report.tables import ratio_table, summary_table, workload_table
from batuta.report.units import count, duration, percent, significant

Figure: TypeAlias = Callable[[str, str], str]
"""Puts a picture and its caption into a numbered frame."""


def write_report(
    path: str | Path, runs: Sequence[RunResult], *, baseline: str | None = None, origin: Origin | None = None
) -> None:
    """Write the report of one run or many to a file, whole or not at all."""
    files.write_text(path, render_report(runs, baseline=baseline, origin=origin))


def render_report(
    runs: Sequence[RunResult], *, baseline: str | None = None, origin: Origin | None = None
) -> str:
    """The page for one run or a comparison of many; the same runs give the same bytes."""
    about = study(runs, baseline)
    title = headline(about.comparison)
    body = tag(
        "body",
        _header(about, title),
        tag("main", _tiles(about), *_sections(about, origin or Origin())),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", _asset("report.js")),
    )
    return f"<!DOCTYPE html>\n{tag('html', _head(about, title), body, lang='en')}\n"


def _head(about: Study, title: str) -> str:
    style = join((palette.css(), _asset("style.css"), switch_css(len(about.shown_runs))))
    # Only this very script may run, so that even a mistake in escaping could not start another.
    digest = base64.b64encode(hashlib.sha256(_asset("report.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", escape(f"{title} – Batuta")),
        tag("style", style),
    )


def _asset(name: str) -> str:
    return resources.files("batuta.report").joinpath(name).read_text("utf-8")


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
    told = tag("p", escape(" ".join(explanation(about.comparison))), class_="lead-text")
    unfinished = [run for run in about.runs if not run.complete]
    warning = ""
    if unfinished:
        names = ", ".join(dict.fromkeys(run.policy for run in unfinished))
        text = f"Stopped before all jobs were over: {names}. Averages are over the jobs that finished."
        warning = tag("p", escape(text), class_="warning", role="note")
    return tag(
        "header",
        tag("p", tag("b", "Batuta"), escape(" · " + " · ".join(parts)), class_="kicker"),
        tag(
            "button", "◐ theme", id="theme", type="button", hidden=True, title="light, dark, or as the system"
        ),
        tag("h1", escape(title)),
        told if explanation(about.comparison) else "",
        warning,
    )


def _tiles(about: Study) -> str:
    """The four or six numbers that people look for first."""
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


def _sections(about: Study, origin: Origin) -> list[str]:
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
        _section("How this was made", origin_section(about, origin)),
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
    pooled = (
        f" Jobs of all {len(comparison.pairs)} runs of a policy together."
        if len(comparison.pairs) > 1
        else ""
    )
    parts = []
    if several:
        parts.append(
            figure(
                policy_bars(about),
                "Job completion time (JCT, submission to end) by policy, best first. Right: mean JCT"
                f" relative to {comparison.baseline}, paired by workload and seed; left of 1 is faster.",
            )
        )
    elif len(about.runs) == 1:
        applications = find_applications(about.runs)
        if len(applications.names) > 1:
            parts.append(figure(application_bars(about.runs[0], applications), "JCT by application."))
    better = " Further up and left is better." if several else ""
    parts.append(
        tag(
            "div",
            figure(
                jct_cdf(about),
                f"Share of the submitted jobs that were done within a time.{better}{pooled}",
            ),
            figure(
                fairness_cdf(about),
                "Finish-time fairness ρ: JCT over the time that a fair share of the cluster would have taken."
                f" Jobs right of 1 would have been better off with their fair share.{pooled}",
            ),
            class_="pair",
        )
    )
    return parts


def _cluster(about: Study, figure: Figure) -> list[str]:
    which = ""
    if len(about.comparison.pairs) > 1:
        which = f" Drawn for workload {about.shown[0]}, seed {about.shown[2]}."
    strips = (
        "one strip per policy; a strip ends when its last job is over"
        if len(about.shown_runs) > 1
        else "0 to 100 %"
    )
    return [
        figure(
            utilisation_strips(about),
            f"Share of the GPUs that jobs hold ({strips}), and the mean over the run at the right.{which}",
        ),
        figure(queue_lines(about), f"Jobs that wait without GPUs, preempted ones included.{which}"),
    ]
