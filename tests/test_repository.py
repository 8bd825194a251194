"""What has to hold for the repository as a whole, whatever the code does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
LOCKS = sorted((REPO / "requirements").glob("*.txt"))


def test_imports_follow_the_layers():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_is_portable(lock: Path):
    """Exact versions with hashes, and neither an address nor an option that ties the lock to one place."""
    text = re.sub(r"^\s*#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    requirements = text.replace("\\\n", " ").splitlines()
    assert requirements
    for requirement in requirements:
        assert re.fullmatch(r"[a-z0-9.-]+==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", requirement)
