"""After `pip install batuta`, `batuta install` has all that it needs: the wheel carries the CRDs."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parents[2]


def test_an_installed_wheel_prints_what_the_repository_prints(tmp_path: Path):
    # given a wheel that is unpacked where no repository is around it
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")

    # when it is asked for the manifests
    def manifests(env: dict[str, str]) -> list[object]:
        command = [sys.executable, "-m", "batuta", "install"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    from_wheel = manifests(os.environ | {"PYTHONPATH": str(tmp_path / "site")})

    # then they are the same, the definition of UnifiedJob included
    assert from_wheel == manifests(dict(os.environ))
    assert from_wheel[0]["kind"] == "CustomResourceDefinition"  # type: ignore[index]
