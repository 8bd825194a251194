"""The dashboard's sources: a lock that works anywhere, and the tests of its plain modules."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[1] / "web"
RUN = WEB / "run.sh"


def test_lock_is_portable():
    """Hashes and no addresses; the native parts of the bundler for the platforms that people have."""
    lock = json.loads((WEB / "package-lock.json").read_text())
    packages = {path: package for path, package in lock["packages"].items() if path}
    assert packages
    for path, package in packages.items():
        assert "resolved" not in package, path
        assert package["integrity"].startswith("sha512-"), path
    for platform in ("linux-x64-gnu", "linux-arm64-gnu", "darwin-x64", "darwin-arm64"):
        assert f"node_modules/@rolldown/binding-{platform}" in packages


def test_versions_are_exact():
    wanted = json.loads((WEB / "package.json").read_text())
    versions = [*wanted["devDependencies"].values(), *wanted["overrides"].values()]
    assert versions
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)


def test_plain_modules():
    if not (WEB / "node_modules").is_dir():
        assert not os.environ.get("CI"), "in CI the dashboard has to be built first: make web"
        pytest.skip("the dashboard is not built: make web")
    done = subprocess.run([RUN, "npm", "test"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
