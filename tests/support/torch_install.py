"""A Python with torch and torchrun: Debian's, or that of PyPI with CUDA's libraries, kept in a cache.

`$BATUTA_TORCH_PYTHON` names another.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cached_env import cached_python

REPO = Path(__file__).resolve().parents[2]
REASON = "needs torch: apt-get install python3-torch, or a Python that has it in $BATUTA_TORCH_PYTHON"
_LOCK = REPO / "tests" / "e2e" / "requirements.txt"
_PROBE = """
import sys
from importlib.metadata import version
from importlib.util import find_spec
assert find_spec("torch.distributed.run")
print(*sys.version_info[:2], *version("torch").split(".")[:2])
"""


@dataclass(frozen=True)
class TorchInstall:
    """A Python that has torch."""

    python: str
    python_version: tuple[int, int]
    torch_version: tuple[int, int]

    def environment(self, folder: Path) -> Path:
        """A folder like that of a virtual environment, for VENV of the examples: its words are this one's."""
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "activate").write_text(f'PATH="{folder}/bin:$PATH"\nexport PATH\n')
        for word, arguments in (("python", ""), ("torchrun", "-m torch.distributed.run")):
            path = folder / "bin" / word
            path.write_text(f'#!/bin/sh\nexec "{self.python}" {arguments} "$@"\n')
            path.chmod(0o755)
        return folder

    @property
    def quirks(self) -> dict[str, str]:
        """What this version needs.

        torch 1 finds a kind of redirection by going through the members of an IntFlag. Since Python 3.11
        these leave out 0 and 3. 0 is the default, and torchrun ends with "'NoneType' object has no attribute
        'get'". A map that names a worker which is not there comes to the same as 0. As flags: --redirects and
        --tee, with 9:1 each.
        """
        if self.torch_version < (2, 0) and self.python_version >= (3, 11):
            return {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
        return {}


@functools.cache
def find_torch() -> TorchInstall | None:
    """The first Python that has torch; None when there is none."""
    for python in _candidates():
        try:
            found = subprocess.run(
                [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True
            ).stdout.split()
        except (OSError, subprocess.SubprocessError):
            continue
        major, minor, torch_major, torch_minor = map(int, found)
        return TorchInstall(python, (major, minor), (torch_major, torch_minor))
    return None


def require_torch() -> TorchInstall:
    """The same, for a test: without torch it is skipped."""
    found = find_torch()
    if found is None:
        pytest.skip(REASON)
    return found


def stock_python() -> Path:
    """One with torch and Lightning as PyPI has them; the test is skipped where they cannot be installed."""
    found = cached_python("frameworks", _LOCK, "3 GB")
    if isinstance(found, str):
        pytest.skip(f"needs the packages of tests/e2e/requirements.txt from PyPI: {found}")
    return found


def _candidates() -> Iterator[str]:
    named = os.environ.get("BATUTA_TORCH_PYTHON")
    if named:
        yield named
        return
    on_path = (shutil.which(word) for word in ("python3", "python"))
    yield from dict.fromkeys(path for path in (sys.executable, *on_path, "/usr/bin/python3") if path)
    stock = cached_python("frameworks", _LOCK, "3 GB")
    if isinstance(stock, Path):
        yield str(stock)
