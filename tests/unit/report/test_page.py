import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from batuta.backends.sim.result import Segment
from batuta.core.job import JobState
from batuta.report.page import Provenance, render_report, write_report
from batuta.report.timeline_charts import MAX_JOBS
from tests.support.results import TOY_POLICIES, make_job, make_run, toy_run

VOID = {"meta", "input", "br", "link", "img"}
EVIL = "</script><script>alert('x\"&')</script>"


class Page(HTMLParser):
    """Checks that tags balance, and remembers what there is."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str | None] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def toy_runs():
    return [toy_run(policy, jobs=60, seed=seed) for policy in TOY_POLICIES for seed in range(2)]


@pytest.fixture(scope="module")
def comparison_page(toy_runs):
    return render_report(toy_runs, origin=Provenance(command="batuta compare --seeds 2"))


def test_comparison_is_sound_html(comparison_page):
    page = Page(comparison_page)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert page.tags.count("title") > page.tags.count("svg")
    assert page.tags.count("desc") == page.tags.count("svg")
    assert page.tags.count("caption") == page.tags.count("table")
    text = " ".join(page.text)
    for policy in TOY_POLICIES:
        assert policy in text
    assert "finishes jobs" in text
    assert "95 % confidence interval" in text
    assert "batuta compare --seeds 2" in text


def test_nothing_is_loaded_from_elsewhere(comparison_page):
    assert not re.findall(r"https?:|@import|url\(", comparison_page)
    page = Page(comparison_page)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not [one for one in page.attributes if one[1] in ("src", "href", "xlink:href", "style")]
    assert not [one for one in page.attributes if one[1].startswith("on")]
    policy = next(value for _, name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'")


def test_no_number_is_broken(comparison_page):
    page = Page(comparison_page)
    numbers = [
        value for _, name, value in page.attributes if name in ("d", "x", "y", "cx", "width", "data-x", "viewbox")
    ]
    assert not [value for value in numbers if "nan" in value or "inf" in value]
    assert not [text for text in page.text if re.search(r"\bnan\b", text)]


def test_same_runs_give_the_same_bytes(toy_runs, comparison_page):
    assert render_report(toy_runs, origin=Provenance(command="batuta compare --seeds 2")) == comparison_page


def test_size_of_eight_policies_with_120_jobs_is_below_two_megabytes():
    page = render_report([toy_run(policy) for policy in TOY_POLICIES])
    assert len(page.encode()) < 1_000_000


def test_strings_of_users_stay_text():
    jobs = [make_job(k, id=f"{EVIL}{k}", application=EVIL, user=EVIL, queue=EVIL) for k in range(3)]
    names = {"workload": EVIL, "cluster": EVIL, "notes": (EVIL,)}
    runs = [make_run(f"{EVIL}{p}", jobs, **names) for p in range(2)]
    text = render_report(runs, origin=Provenance(command=EVIL, made_at=EVIL))
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "alert(&#x27;x&quot;&amp;&#x27;)" in text
    assert "alert('" not in text
    assert Page(render_report(runs[:1])).tags.count("script") == 1


def test_characters_that_html_forbids_are_replaced(tmp_path):
    job = make_job(id="a\x00b\ud800c\tnew\nline")
    write_report(tmp_path / "r.html", [make_run("p\x1b[31m", [job])])
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "\x00" not in text
    assert "\x1b" not in text
    Page(text)


def test_one_run():
    page = Page(render_report([toy_run("afs-l", jobs=40)]))
    text = " ".join(page.text)
    assert "afs-l finishes 40 jobs" in text
    assert "relative to" not in text
    assert not [one for one in page.attributes if one[1] == "id" and one[2].startswith("panel-")]
    assert "Decision cycle" in text


def test_runs_with_nothing_in_them():
    waiting = make_job(state=JobState.PENDING, first_start_s=math.nan, end_s=math.nan, fairness=math.nan, gpu_s=0.0)
    stuck = make_run("stuck", [waiting], complete=False, segments=())
    empty = replace(stuck, policy="empty", jobs=(), decide_ms=np.zeros(0), step_ms={})
    bare = np.zeros(0)
    whole = bare.astype(np.int64)
    no_time = replace(empty.timeline, time_s=bare, used_gpus=whole, capacity_gpus=whole, running=whole, pending=whole)
    never = replace(empty, policy="never", timeline=replace(no_time, fragmentation=bare))
    for runs in ([stuck], [empty], [never], [stuck, empty, never]):
        text = " ".join(Page(render_report(runs)).text)
        assert "Stopped before all jobs were over" in text
    assert "No policy finished all jobs" in text


@pytest.mark.slow
def test_a_trace_of_eighty_thousand_jobs_is_fast_and_small():
    rng = np.random.default_rng(1)
    jobs = []
    for k, (gap, span) in enumerate(zip(rng.exponential(90, 80_000), rng.lognormal(8, 1.5, 80_000), strict=True)):
        submit = 100.0 * k
        start = submit + gap
        jobs.append(make_job(k, submit_s=submit, first_start_s=start, end_s=start + span, application=f"app{k % 12}"))
    run = make_run("fifo", jobs)
    # The longest job changes its size all the time: its row has to be sampled.
    restless = max(jobs, key=lambda job: job.gpu_s)
    edges = np.linspace(restless.first_start_s, restless.end_s, 5001).tolist()
    resized = [Segment(restless.id, a, b, 1 + k % 8, ("n0",)) for k, (a, b) in enumerate(pairwise(edges))]
    run = replace(run, segments=run.segments + tuple(resized))
    began = time.process_time()
    text = render_report([run])
    assert time.process_time() - began < 5
    assert len(text.encode()) < 400_000
    assert f"{MAX_JOBS} of 80,000 jobs are drawn" in text


def test_many_policies_stay_bounded(toy_runs):
    shown = [run for run in toy_runs if run.seed == 0]
    many = [replace(shown[k % len(shown)], policy=f"policy-{k}") for k in range(40)]
    text = render_report(many)
    Page(text)
    assert len(text.encode()) < 3_000_000


def test_several_workloads_have_a_table_of_their_own(toy_runs):
    other = [replace(run, workload="philly") for run in toy_runs]
    text = " ".join(Page(render_report([*toy_runs, *other])).text)
    assert "Mean JCT by workload" in text
    assert "workload sample, seed 0" in text


def test_a_missing_run_is_said_and_drawn_around(toy_runs):
    text = " ".join(Page(render_report(toy_runs[1:])).text)
    assert "lack runs: fifo" in text


def test_tooltips_of_jobs_have_a_line_per_row(comparison_page):
    rows = [value for _, name, value in Page(comparison_page).attributes if name == "data-rows"]
    assert len(rows) == len(TOY_POLICIES)
    assert all(len(one.split("\n")) == 60 and all(line.count("\t") == 3 for line in one.split("\n")) for one in rows)


def test_the_file_is_written_whole(tmp_path, toy_runs):
    write_report(tmp_path / "deep" / "report.html", toy_runs[:2])
    assert (tmp_path / "deep" / "report.html").read_text("utf-8").endswith("</html>\n")
    assert json.dumps(sorted(path.name for path in (tmp_path / "deep").iterdir())) == '["report.html"]'
