"""`batuta share`: what people type, and what they read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batuta.cli.main import app
from batuta.gpu.devices import Device
from batuta.gpu.share import selftest
from batuta.gpu.share.selftest import Check
from batuta.spec.problem import InputError
from tests.gpu.share.containers import MIB, container, end, limit, said
from tests.support.vgpu import VirtualNode


def batuta(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["share", *map(str, words)])


def test_status_is_a_table_for_people_and_json_for_programs(node: VirtualNode):
    place = container(node, limit(node, 100, compute_percent=30))
    holder = place.hold(40)
    assert said(holder) == "0"
    words = batuta("status", node.path.parent).stdout.splitlines()
    assert words[0].split()[:3] == ["CONTAINER", "GPU", "MEMORY"]
    assert "one" in words[1]
    assert "40/100MiB" in words[1]
    assert "30%" in words[1]
    for path in (place.limits_path, place.limits.region):
        (found,) = json.loads(batuta("status", path, "-o", "json").stdout)
        (device,) = found["devices"]
        assert (found["container"], device["used_bytes"], device["hard_percent"]) == ("one", 40 * MIB, 30)
        assert [one["pid"] for one in device["processes"]] == [holder.pid]
    end(holder)
    # a process that is gone has nothing, reaped or not
    (found,) = json.loads(batuta("status", place.limits.region, "-o", "json").stdout)
    assert found["devices"][0]["used_bytes"] == 0


def test_status_says_what_is_not_there(tmp_path: Path):
    assert "no container is limited here" in batuta("status", tmp_path).stdout
    with pytest.raises(InputError, match=r"there is no .*absent \(name a limits file"):
        raise_of(batuta("status", tmp_path / "absent"))
    (tmp_path / "limits").write_text("something else")
    with pytest.raises(InputError, match="is not the region of a container"):
        raise_of(batuta("status", tmp_path))


def raise_of(result: Result) -> None:
    """What the command line would have printed as an error."""
    assert result.exception is not None
    raise result.exception


def test_selftest_tries_everything_on_the_gpu_that_is_there(node: VirtualNode, monkeypatch):
    # given short loads: how exact shares are is benchmarked
    monkeypatch.setattr(selftest, "_LOAD_S", 0.3)
    monkeypatch.setattr(selftest, "MAX_ERROR_POINTS", 100.0)
    gpu = node.read()[1]
    device = Device(1, gpu.uuid, "T4", gpu.memory_bytes // MIB)
    # when it runs
    checks = list(selftest.run_selftest(device, node.env))
    # then all entry points hold, and shares were measured
    assert all(check.holds for check in checks if "given" not in check.verdict)
    assert Check("cuMemAlloc_v2", "holds, by 4 ways", True) in checks
    assert Check("cuGraphLaunch_ptsz", "holds, by 4 ways", True) in checks
    assert sum("% given" in check.verdict for check in checks) == 6


def test_selftest_without_a_gpu_says_so_and_shows_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "batuta", "share", "selftest"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"BATUTA_VGPU": "", "LD_LIBRARY_PATH": ""},
    )
    assert done.returncode == 2
    assert done.stderr == "error: no GPU 0: there is none (batuta vgpu create makes virtual ones)\n"
