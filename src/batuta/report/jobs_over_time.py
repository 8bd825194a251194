"""The chapter with one panel per policy: who held the GPUs, and the life of every job.

One panel shows at a time. The switches are radio buttons and CSS, so they work without a script; print has
the chosen panel.
"""

from __future__ import annotations

from batuta.backends.sim.result import RunResult
from batuta.report.charts.applications import Applications
from batuta.report.charts.gantt import choose_jobs, gantt
from batuta.report.charts.stack import stack
from batuta.report.markup import escape, join, tag
from batuta.report.palette import SIZE_LABELS, SIZES, size_shade
from batuta.report.study import Study
from batuta.report.units import count, duration, percent


def jobs_over_time(study: Study, applications: Applications, figure: int) -> str:
    """Switches, legend, and a panel for each policy of the shown workload."""
    jobs = choose_jobs(study)
    # One colour for all would say nothing.
    by_size = len(applications.keys) < 2
    inputs = [
        _radio("colour", "by-app", "application", checked=not by_size),
        _radio("colour", "by-size", "GPUs held", checked=by_size),
    ]
    switches = [tag("fieldset", tag("legend", "Colour by"), *inputs)]
    if len(study.shown_runs) > 1:
        policies = [
            _radio("panel", f"panel-{k}", run.policy, checked=k == 0)
            for k, run in enumerate(study.shown_runs)
        ]
        switches.insert(0, tag("fieldset", tag("legend", "Policy"), *policies))
    panels = [
        tag("div", _panel(study, run, jobs, applications), class_=f"panel panel-{k}")
        for k, run in enumerate(study.shown_runs)
    ]
    most = max((segment.gpus for run in study.shown_runs for segment in run.segments), default=1)
    legends = tag("div", _legends(applications, size_shade(most)), class_="legend")
    caption = tag("figcaption", f"<b>Figure {figure}.</b> {escape(_caption(study, len(jobs)))}")
    return tag("div", *switches, legends, tag("figure", *panels, caption), class_="switched")


def switch_css(panels: int) -> str:
    """Rules that tie each radio button to what it shows."""
    rules = [".switched:has(#by-size:checked) .by-app,.switched:has(#by-app:checked) .by-size{display:none}"]
    rules += [f".switched:has(#by-size:checked) .g{k}{{color:var(--z{k})}}" for k in range(SIZES)]
    for k in range(panels if panels > 1 else 0):
        rules.append(f".switched:has(#panel-{k}:checked) .panel:not(.panel-{k}){{display:none}}")
    return "\n".join(rules)


def _radio(group: str, key: str, text: str, *, checked: bool) -> str:
    box = f'<input type="radio" name="{group}" id="{key}"{" checked" if checked else ""}>'
    return tag("label", box, tag("span", escape(text)))


def _panel(study: Study, run: RunResult, jobs: tuple[str, ...], applications: Applications) -> str:
    values = study.comparison.cells[run.policy, study.shown]
    facts = [
        f"mean JCT {duration(values['jct_mean_s'])}",
        f"{percent(values['gpu_utilisation'])} of GPUs used",
        count(int(values["restarts"]), "restart"),
        count(int(values["preemptions"]), "preemption"),
    ]
    mark = tag("span", class_=f"swatch {study.styles[run.policy]}")
    return join(
        (
            tag("h3", mark, escape(run.policy), tag("small", escape(" · ".join(facts)))),
            tag("div", stack(study, run, applications), class_="plot"),
            tag("div", gantt(study, run, jobs, applications), class_="plot"),
        )
    )


def _legends(applications: Applications, largest: int) -> str:
    apps = [_chip(key.style, key.label) for key in applications.keys]
    sizes = [_chip(f"z{k}", SIZE_LABELS[k]) for k in range(largest + 1)]
    return join(
        (
            tag("span", *apps, class_="by-app"),
            tag("span", tag("span", "GPUs per job", class_="chip"), *sizes, class_="by-size"),
            tag("span", tag("span", class_="wait-line"), "waiting", class_="chip"),
        )
    )


def _chip(style: str, text: str) -> str:
    return tag("span", tag("span", class_=f"swatch {style}"), escape(text), class_="chip")


def _caption(study: Study, drawn: int) -> str:
    jobs = max((len(run.jobs) for run in study.shown_runs), default=0)
    text = (
        "Above: GPUs held over time; dashed, the GPUs there are. Below: a row per job, in order of submission"
    )
    if drawn < jobs:
        text += f"; {drawn} of {jobs:,} jobs are drawn, those that held the most GPU time"
    text += "."
    if len(study.comparison.pairs) > 1:
        text += f" Drawn for workload {study.shown[0]}, seed {study.shown[2]}."
    return text
