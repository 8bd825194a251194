"""Whatever is fed to the reader of tasks, it says InputError or gives a task that the scheduler can have."""

import contextlib
import json
import re

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_job import task_to_job
from batuta.spec.task_serialization import task_from_json, task_to_json

KEYS = re.split(
    r"\s+",
    """name workdir num_nodes resources accelerators cpus memory labels image_id priority any_of ordered
job_recovery max_restarts_on_errors recover_on_exit_codes envs secrets file_mounts setup run config elastic
min_nodes max_nodes sizes step checkpoint checkpoint_interval grace kind gpu compute topology numa source
kueue.x-k8s.io/queue-name kueue.x-k8s.io/max-exec-time-seconds << H100 A100:4 /data""",
)
WORDS = re.split(
    r"\s+",
    """H100:8 H100:0.5 4+ 32GB 50% on-signal interval none auto mpi 60s 10m single prefer-node require-rack
s3://b ~/x ./y $A ${B} null true ~ .nan .inf -1 0 1 2 4 8 1e9 1_000 0x10 "" *a &a torchrun !!set !x""",
)

scalars = st.one_of(
    st.sampled_from(WORDS), st.integers(-3, 10**9), st.floats(), st.booleans(), st.none(), st.text(max_size=8)
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5),
    ),
    max_leaves=25,
)
lines = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(KEYS),
        st.sampled_from([*WORDS, "", "|", "[", "{a: b}", "- x", "\t"]),
    ),
    max_size=12,
).map(lambda found: "run: x\n" + "".join(f"{'  ' * depth}{key}: {value}\n" for depth, key, value in found))


def check(text: str) -> None:
    try:
        task = parse_task(text, check_paths=False)
        job = task_to_job(task, "j", 0.0)
    except InputError:
        return
    assert job.faults() == []
    assert task_from_json(task_to_json(task)) == task


@given(st.text(max_size=200))
@example("\ud800")
@example('{"run": "\\ud800"}')
@example("?" * 100)
@example("run: x\nenvs: {[a]: 1}")
@example("run: x\nfile_mounts: {[a]: 1}")
@example("%YAML 9.9\n---\nrun: x")
def test_any_text_is_a_task_or_refused(text):
    check(text)


@given(lines)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_lines_of_known_words_are_a_task_or_refused(text):
    check(text)


@given(st.dictionaries(st.sampled_from(KEYS), trees, max_size=6))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_tree_of_known_keys_is_a_task_or_refused(tree):
    check(json.dumps({"run": "x", **tree}))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "num_nodes": st.integers(1, 9),
            "elastic": st.fixed_dictionaries(
                {},
                optional={
                    "min_nodes": st.integers(1, 9),
                    "max_nodes": st.integers(1, 9),
                    "sizes": st.lists(st.integers(1, 9), max_size=4),
                    "step": st.integers(1, 3),
                    "checkpoint": st.sampled_from(["none", "on-signal", "interval"]),
                    "checkpoint_interval": st.sampled_from(["10m", "1d"]),
                },
            ),
            "resources": st.fixed_dictionaries(
                {"accelerators": st.sampled_from(["H100:8", "T4", "T4:0.5", ["A100:2", "H100:4"], 3])}
            ),
            "gpu": st.fixed_dictionaries({}, optional={"memory": st.just("8GB"), "compute": st.just("30%")}),
        },
    )
)
def test_sizes_that_are_accepted_are_sound(tree):
    check(json.dumps({"run": "x", **tree}))


@given(st.text(max_size=60) | trees.map(lambda tree: json.dumps({"schema": 1, "task": tree})))
@example("[" * 10_000)
@example('{"schema": 1}')
@example('{"schema": true, "task": {}}')
def test_any_stored_text_is_a_task_or_refused(text):
    with contextlib.suppress(InputError):
        task_from_json(text)
