"""`batuta vgpu`: what people type, and what they read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import run_batuta
from tests.support.vgpu import compiler


def batuta(*words: str | Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return run_batuta("vgpu", *words, env=os.environ | env)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.vgpu"
    options = ("--gpus", "4", "--memory", "16GiB", "--model", "v100", "--numa", "2", "--label", "here")
    made = batuta("create", *options, path)
    assert made.returncode == 0, made.stderr
    assert "4 × Tesla V100-SXM2-16GB" in made.stderr
    return path


def test_status_is_a_table_for_people_and_json_for_programs(file: Path):
    table = batuta("status", file).stdout.splitlines()
    assert " ".join(table[0].split()) == "GPU NAME TEMP POWER MEMORY UTIL NUMA ECC LINKS STATE"
    assert " ".join(table[4].split()) == "3 Tesla V100-SXM2-16GB 32C 40/300W 0/16384MiB 0% 1 0 6/6 ok"
    assert table[-1] == "no processes"
    gpus = json.loads(batuta("status", file, "-o", "json").stdout)
    assert [(gpu["index"], gpu["numa_node"], gpu["memory_bytes"]) for gpu in gpus] == [
        (index, index // 2, 16 << 30) for index in range(4)
    ]


def test_harm_and_healing_are_seen(file: Path):
    assert batuta("inject", file, "--gpu", "1", "--xid", "79", "--temperature", "95").returncode == 0
    assert batuta("status", file).stdout.splitlines()[2].split()[-1] == "lost"
    assert batuta("inject", file, "--gpu", "1", "--heal", "--ecc-uncorrected", "2").returncode == 0
    healed = batuta("status", file).stdout.splitlines()[2].split()
    assert (healed[3], healed[-3], healed[-1]) == ("32C", "2", "ok")


def test_a_program_runs_on_the_virtual_gpus_and_its_exit_code_is_kept(file: Path):
    compiler()
    program = "import pynvml, sys; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount(), sys.argv[1:]); sys.exit(7)"
    done = batuta("run", file, "--", sys.executable, "-c", program, "--gpus", "--", "-x")
    assert (done.returncode, done.stdout) == (7, "4 ['--gpus', '--', '-x']\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        (("create", "--model", "V10", "--memory", "lots", "new"), ("did you mean V100?", "--memory: 'lots'")),
        (("create", "--gpus", "17", "--kernel-us", "0", "new"), ("from 1 to 16, not 17", "--kernel-us")),
        (("inject", "FILE", "--gpu", "9"), ("inject what?", "there is no GPU 9 (0 to 3)")),
        (("status", "absent"), ("cannot open absent: No such file or directory (make one:",)),
        (("run", "FILE", "--", "no-such-program"), ("cannot run no-such-program: No such file",)),
        (("run", "FILE", "--"), ("run what?",)),
        (("create", "FILE"), ("exists (add --force",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_input_is_refused_with_all_problems_and_no_traceback(file: Path, words, complaints):
    done = batuta(*(file if word == "FILE" else word for word in words))
    assert done.returncode == 2
    assert all(complaint in done.stderr for complaint in complaints), done.stderr
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
