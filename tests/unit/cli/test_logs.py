"""Options of `batuta logs` that make sense on a cluster only, and where the Loki is named."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.logs import find_loki
from batuta.cli.main import app
from batuta.client.loki import LokiAddress
from batuta.spec.problem import InputError


def test_a_server_of_ours_says_all_at_once_what_it_has_no_use_for(tmp_path: Path):
    """Given no cluster, when times and a Loki are asked for, then each is refused, and nobody is asked."""
    words = ["logs", "17", "--since", "2h", "--loki", "http://loki", "--home", str(tmp_path)]
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, InputError)
    assert [problem.message for problem in refused.problems] == [
        "--since is for a cluster",
        "--loki is for a cluster",
    ]


def test_a_loki_is_named_by_the_option_else_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("BATUTA_LOKI", "BATUTA_LOKI_TENANT", "BATUTA_LOKI_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert find_loki(None, None) is None
    monkeypatch.setenv("BATUTA_LOKI", "loki:3100/loki/api/v1/push")
    monkeypatch.setenv("BATUTA_LOKI_TENANT", "ml")
    monkeypatch.setenv("BATUTA_LOKI_TOKEN", "hush")
    assert find_loki(None, None) == LokiAddress("http://loki:3100", "hush", "ml")
    assert find_loki("https://other", "me") == LokiAddress("https://other", "hush", "me")
