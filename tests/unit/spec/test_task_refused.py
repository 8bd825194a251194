"""A bad task is refused with all its problems, their places, and what to do about them."""

import pytest

from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_env import Overrides


def problems_of(text: str, overrides: Overrides | None = None, **options) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_task(text, "t.yaml", overrides or Overrides(), **options)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (Overrides(gpus="H100:x"), "--gpus: 'x' is not a count of GPUs (a whole number within 1..1024, or"),
        (Overrides(num_nodes=0), "--num-nodes must be a whole number within 1..100000 or auto, found 0"),
        (Overrides(priority=2000), "--priority must be a whole number within -1000..1000, or the name of a"),
        (Overrides(queue="a b"), "--queue: 'a b' is not the name of a queue"),
        (Overrides(name="-x"), "--name: '-x' is not a name"),
        (Overrides(env={"A B": ""}), "--env: 'A B' is not a name for a variable"),
        (Overrides(env={"A": "\0"}), "--env A holds a NUL character"),
        (Overrides(workdir="/not/there"), "t.yaml: workdir '/not/there' is not there"),
    ],
)
def test_a_bad_command_line_is_refused_too(overrides, said):
    (found,) = problems_of("run: x", overrides)
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: x\nnam: y", "2:1: unknown key nam in a task (did you mean name?)"),
        ("run: x\nresource: {}", "2:1: unknown key resource in a task (did you mean resources?)"),
        (
            "run: x\nzzz: 1",
            "2:1: unknown key zzz in a task (known: name, workdir, num_nodes, resources, envs,",
        ),
        (
            "run: x\nresources: {acelerators: H100}",
            "2:13: unknown key acelerators in resources (did you mean accelerators?)",
        ),
        ("run: x\nresources: {regoin: a}", "2:13: unknown key regoin in resources (did you mean region?)"),
        ("run: x\nresources: [a]", "2:12: resources must be a mapping, found a list"),
        ("run: x\nrun: y", "2:1: key run appears twice in a task"),
        ("run: x\nname: [a]", "2:7: name must be a text, found a list"),
        (
            "run: x\nname: a/b",
            "2:7: name cannot be 'a/b' (letters and digits of any script, dots, dashes and underscores",
        ),
        ("name: a", "t.yaml: a task needs run: the commands for each node"),
        ("run: ''", "1:6: a task needs run: the commands for each node"),
        ("run: [a]", "1:6: run must be a text, found a list"),
        ("run: x\nnum_nodes: 0", "2:12: num_nodes must be a whole number within 1..100000, found '0'"),
        ("run: x\nnum_nodes: -3", "2:12: num_nodes must be a whole number within 1..100000, found '-3'"),
        ("run: x\nnum_nodes: 2.5", "2:12: num_nodes must be a whole number within 1..100000, found '2.5'"),
        ("run: x\nnum_nodes: .nan", "2:12: num_nodes must be a whole number within 1..100000, found '.nan'"),
        ("run: x\nnum_nodes: [2]", "2:12: num_nodes must be a whole number within 1..100000, found a list"),
        ("run: x\nresources: {cpus: -1}", "2:19: cpus: '-1' is not an amount above 0 (for example 4, or 4+"),
        ("run: x\nresources: {memory: lots}", "2:21: memory: 'lots' is not an amount of memory"),
        ("run: x\nresources: {priority: 1001}", "2:23: priority must be a whole number within -1000..1000"),
        ("run: x\nresources: {accelerators: 8xH100}", "2:27: accelerators: '8xH100' is not an accelerator"),
        ("run: x\nresources: {accelerators: H100:0}", "2:27: accelerators: '0' is not a count of GPUs"),
        ("run: x\nresources: {accelerators: H100:1.5}", "2:27: accelerators: '1.5' is not a count of GPUs"),
        ("run: x\nresources: {accelerators: {H100: -1}}", "2:34: accelerators: '-1' is not a count of GPUs"),
        ("run: x\nresources: {accelerators: []}", "2:27: accelerators must not be an empty list"),
        ("run: x\nresources: {any_of: [3]}", "2:22: resources.any_of must be a mapping, found '3'"),
        (
            "run: x\nresources: {any_of: [{cpu: 1}]}",
            "2:23: unknown key cpu in resources.any_of (did you mean cpus?)",
        ),
        (
            "run: x\nresources: {labels: {kueue.x-k8s.io/queue-name: a b}}",
            "2:49: label kueue.x-k8s.io/queue-name: 'a b' is not the name of a queue",
        ),
        (
            "run: x\nresources: {labels: {kueue.x-k8s.io/max-exec-time-seconds: 1h}}",
            "2:60: label kueue.x-k8s.io/max-exec-time-seconds: '1h' is not a number of seconds",
        ),
        (
            "run: x\nresources: {job_recovery: {max_restarts_on_errors: -1}}",
            "2:52: max_restarts_on_errors must be a whole number within 0..10000, found '-1'",
        ),
        (
            "run: x\nresources: {job_recovery: {recover_on_exit_codes: 256}}",
            "2:51: an exit code must be a whole number within 0..255, found '256'",
        ),
        ("run: x\nenvs: {A: [1]}", "2:11: envs.A must be a text, found a list"),
        ("run: x\nenvs: {1A: 1}", "2:8: '1A' is not a name for a variable (letters, digits and _"),
        ("run: x\nenvs: {A: null}", "2:11: envs.A has no value (write one, or give --env A=…)"),
        ("run: x\nsecrets:\n  A:", "3:5: secrets.A has no value (write one, or give --secret A=…)"),
        ('run: "a\\0b"', "1:6: run holds a NUL character, which no command can"),
        ("run: x\ngpu: {memry: 1}", "2:7: unknown key memry in gpu (did you mean memory?)"),
        ("run: x\ngpu: {compute: 0.5}", "2:16: gpu.compute: '0.5' is not a share in percent"),
        ("run: x\ngpu: {topology: rack}", "2:17: gpu.topology cannot be 'rack'"),
        ("run: x\ngpu: {numa: double}", "2:13: gpu.numa cannot be 'double' (one of any, single)"),
        (
            "run: x\ngpu: {memory: 8GiB}\nresources: {accelerators: H100:2}",
            "2:6: a share is of one GPU, but accelerators asks for more",
        ),
        (
            "run: x\nnum_nodes: 2\nresources: {accelerators: H100:0.5}",
            "3:12: a task with a share of a GPU has one node",
        ),
        ("- run: x", "1:1: a task must be a mapping, found a list"),
        ("run", "1:1: a task must be a mapping, found 'run'"),
        (
            "run: x\n---\nrun: y",
            "2:1: holds more than one document (one file is one task: launch those of a pipeline one by one)",
        ),
        ("run: x\nenvs:\n\tA: 1", "3:1: is not YAML: a tab (indent with spaces)"),
        ("run: [", "2:1: is not YAML: did not find expected node content"),
        ("", "t.yaml: is empty"),
        (" \n", "t.yaml: is empty"),
        ("# only this", "t.yaml: holds nothing but comments"),
        ("run: x\nname: \x07", "2:7: holds the control character U+0007"),
        ("run: x" + " " * 2**20, "t.yaml: is larger than 1 MiB (a task file is small)"),
        ("run: " + "é" * 2**19 + "é", "t.yaml: is larger than 1 MiB (a task file is small)"),
        (
            "run: !!python/object/apply:os.system [x]",
            "1:6: the tag tag:yaml.org,2002:python/object/apply:os.sy",
        ),
        ("run: !env HOME", "1:6: the tag !env is unknown (write plain YAML, without tags)"),
        ("run: x\n<<: 3", "2:5: only mappings can be merged with <<"),
        ("run: x\n? [a]\n: b", "2:3: a key of a task must be a single word"),
    ],
)
def test_a_bad_file_is_refused_with_place_and_fix(text, said):
    (found,) = problems_of(text)
    assert found.startswith(said if said.startswith("t.yaml") else f"t.yaml:{said}")


@pytest.mark.parametrize(
    "text",
    [
        "run: x\nenvs: &a {b: *a}",
        "&a {run: *a}",
        "a: &a [x, x, x]\n"
        + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}' if k else '*a'] * 9)}]\n" for k in range(9)),
        "[" * 10**5,
        "{" * 10**5,
        "- " * 10**5,
        "a: " * 10**5,
        "run: x\nenvs: {" + ", ".join(f"a{k}: 1" for k in range(30_000)) + "}",
    ],
)
def test_bombs_do_not_go_off(text):
    assert problems_of(text)


def test_all_problems_come_at_once_in_the_order_of_the_file():
    text = """\
nam: x
num_nodes: none
resources:
  accelerators: [H100:8, 8xA100]
  cpus: -4
  priority: very high
envs: {A: null}
elastic: {min_nodes: 4, max_nodes: 2, grace: soon}
gpu: {compute: 200%}
workdir: /not/there
file_mounts: {/data: s3://bucket, /more: /not/there}
"""
    places = [found.split(": ")[0] for found in problems_of(text)]
    assert places == [
        "t.yaml",
        *("t.yaml:1:1", "t.yaml:2:12", "t.yaml:4:26", "t.yaml:5:9", "t.yaml:6:13", "t.yaml:7:11"),
        *("t.yaml:8:22", "t.yaml:8:46", "t.yaml:9:16", "t.yaml:10:10", "t.yaml:11:22", "t.yaml:11:42"),
    ]
