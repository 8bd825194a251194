"""Shells complete verbs; what is installed is what is printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.spec.problem import InputError


def complete(words: str) -> list[str]:
    environ = os.environ | {
        "_BATUTA_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "BATUTA_HOME": "/nonexistent",
    }
    done = subprocess.run([sys.executable, "-m", "batuta"], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs_and_options():
    assert complete("batuta la") == ["launch"]
    assert complete("batuta nodes un") == ["uncordon"]
    assert "--num-nodes" in complete("batuta launch --num")


def test_jobs_of_a_server_that_is_not_there():
    assert complete("batuta logs ") == []


def test_policies_without_a_server():
    """Given no server, when the Tab key is pressed behind a policy option, then policies are offered."""
    assert {"elastic-fifo", "elastic-tiresias"} <= set(complete("batuta policy set elastic-"))
    assert "tiresias" in complete("batuta up -p tires")
    assert complete("batuta simulate --policy afs-") == complete("batuta whatif -p afs-") != []


def test_queues_of_a_server_that_is_not_there():
    assert complete("batuta launch -q ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell, tmp_path, monkeypatch):
    printed = CliRunner().invoke(app, ["completion", shell]).stdout
    assert "_BATUTA_COMPLETE=complete_" in printed
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["completion", "install", shell])
    assert result.exit_code == 0
    written = Path(result.stdout.split("written to ")[1].split(";")[0])
    assert written.read_text().strip() == printed.strip()
    assert written.is_relative_to(tmp_path)


def test_an_unknown_shell(monkeypatch):
    monkeypatch.setattr("batuta.cli.completion._own_shell", lambda: "tcsh")
    result = CliRunner().invoke(app, ["completion", "install"])
    assert isinstance(result.exception, InputError)
