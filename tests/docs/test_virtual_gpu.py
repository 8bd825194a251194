"""docs/how-to/virtual-gpu.md: its commands do what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.gpu.vgpu.device_file import MODELS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "virtual-gpu.md").read_text()
COMMANDS = re.findall(r"^batuta vgpu (?:create|status|inject) .*$", PAGE, re.MULTILINE)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_the_commands_work_one_after_the_other(tmp_path: Path):
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


def test_the_reference_lists_all_models():
    reference = (DOCS / "reference" / "cli.md").read_text()
    (line,) = re.findall(r"^\| `--model MODEL` \|(.*)$", reference, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", line)) == set(MODELS)
