"""What jobs say of their progress is read as the SDK writes it."""

import os
import subprocess
import sys
from pathlib import Path

from batuta.gpu.profiler.usage import ProgressFiles

REPORT = """
from batuta import sdk
for step in range(1, 4):
    sdk.report(step=step * 10, total_steps=100)
"""


def report(path: Path, rank: str = "0") -> None:
    env = os.environ | {"BATUTA_PROGRESS": str(path), "RANK": rank}
    subprocess.run([sys.executable, "-c", REPORT], env=env, check=True, timeout=60)


def steps(files: ProgressFiles, path: Path) -> list[float]:
    return [said.step for _, said in files.read_new({"job": str(path)})]


def test_reports_of_the_sdk_are_heard_once(tmp_path: Path):
    path, files = tmp_path / "progress", ProgressFiles()
    assert steps(files, path) == []
    report(path)
    said = list(files.read_new({"job": str(path)}))
    assert [(job, one.step, one.total_steps) for job, one in said] == [("job", step, 100) for step in (10, 20, 30)]
    assert steps(files, path) == []
    report(path)
    assert steps(files, path) == [10, 20, 30]


def test_other_ranks_say_the_same_and_do_not_count(tmp_path: Path):
    path = tmp_path / "progress"
    report(path, rank="1")
    assert steps(ProgressFiles(), path) == []


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path):
    path, files = tmp_path / "progress", ProgressFiles()
    path.write_bytes(b'{"time": 1, "step": 1}\n{"time": 2, "st')
    assert steps(files, path) == [1]
    with path.open("ab") as file:
        file.write(b'ep": 2}\n')
    assert steps(files, path) == [2]


def test_what_is_no_report_is_left_out(tmp_path: Path):
    path = tmp_path / "progress"
    path.write_text('nonsense\n[1]\n{"time": 1}\n{"time": "x", "step": 1}\n{"time": 5, "step": 7}\n{"event": "x"}\n')
    assert steps(ProgressFiles(), path) == [7]


def test_of_a_very_long_file_the_end_is_read(tmp_path: Path):
    path = tmp_path / "progress"
    path.write_text("".join(f'{{"time": {k}, "step": {k}}}\n' for k in range(20_000)))
    found = steps(ProgressFiles(), path)
    assert 1000 < len(found) < 20_000
    assert found[-1] == 19_999


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert steps(ProgressFiles(), path) == []


def test_a_file_that_began_anew_is_read_from_its_beginning(tmp_path: Path):
    path, files = tmp_path / "progress", ProgressFiles()
    path.write_text('{"time": 1, "step": 1}\n{"time": 2, "step": 2}\n')
    steps(files, path)
    path.write_text('{"time": 3, "step": 9}\n')
    assert steps(files, path) == [9]
