"""A real Prometheus: the server that scrapes and answers queries, and promtool."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

MISSING = "needs a Prometheus: apt-get install --no-install-recommends prometheus"
WITHIN_S = 30.0
_PAUSE_S = 0.05


def find(name: str) -> Path:
    """The path of `prometheus` or `promtool`; skips the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(MISSING)
    return Path(found)


def promtool(*words: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """What it says of files, or of a text that it is given."""
    command = [str(find("promtool")), *map(str, words)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


class Prometheus:
    """A server of its own that scrapes targets four times a second. For a `with` block."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path | None = None) -> None:
        """`targets`: addresses (host:port) by the name that Prometheus gives them as label `job`."""
        self._program = find("prometheus")
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "500ms"},
            "rule_files": [] if rules is None else [str(rules)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [address]}]} for name, address in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> "Prometheus":
        words = (
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )
        with (self._folder / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [self._program, *words], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self.until(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression is now; a scalar is a vector of one."""
        found = self.ask("query", query=expression)
        return found["result"] if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]

    def label_values(self, series: str, label: str) -> list[str]:
        found: list[str] = self.ask(f"label/{label}/values", **{"match[]": series})
        return found

    def ask(self, path: str, **words: str) -> Any:
        """An answer of the HTTP API; an error fails with what Prometheus said."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {words}: {error.read().decode(errors='replace')}") from None

    def until(self, look: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
        give_up = time.monotonic() + within_s
        while not (found := look()):
            assert time.monotonic() < give_up, f"not within {within_s} s: {what}\n{self.last_words()}"
            assert self._process is not None
            assert self._process.poll() is None, f"Prometheus has ended:\n{self.last_words()}"
            time.sleep(_PAUSE_S)
        return found

    def last_words(self) -> str:
        return (self._folder / "said").read_text(errors="replace")[-2000:]

    def _is_ready(self) -> bool:
        with suppress(OSError):
            url = f"http://127.0.0.1:{self._port}/-/ready"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
