"""`batuta device-plugin` as a process, on virtual GPUs: it starts, serves, and ends when it is told to."""

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.device_plugin.books import COMPUTE, MEMORY
from tests.gpu.device_plugin.kubelet import WITHIN_S, Kubelet, in_time
from tests.support.vgpu import VirtualNode

BATUTA = Path(sys.executable).with_name("batuta")
NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}
"""A cluster whose API server does not answer."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="plugin-"))
    yield made
    shutil.rmtree(made)


def command(folder: Path, *more: str) -> list[str]:
    (folder / "kubeconfig").write_text(json.dumps(NOWHERE))
    (folder / "share.so").write_bytes(b"never loaded here")
    own = {"--node": "n", "--mode": "preload", "--kubelet-dir": folder, "--state-dir": folder / "state"}
    own |= {"--kubeconfig": folder / "kubeconfig", "--library": folder / "share.so"}
    return [str(BATUTA), "device-plugin", *(str(word) for pair in own.items() for word in pair), *more]


def test_a_plugin_offers_the_cards_without_an_api_server_and_ends_by_a_signal(folder: Path) -> None:
    """Given an API server that is gone, units are offered all the same; SIGTERM ends all threads in order."""
    gpus = VirtualNode.make(folder, gpus=1)

    async def run() -> None:
        async with Kubelet(folder) as kubelet:
            plugin = await asyncio.create_subprocess_exec(
                *command(folder, "--compute", "150"), env=gpus.env, stderr=asyncio.subprocess.PIPE
            )
            try:
                await kubelet.registrations()
                for resource, units in ((MEMORY, 60), (COMPUTE, 150)):
                    assert len((await anext(kubelet.watch(resource))).devices) == units
                refused = await kubelet.refusal(kubelet.allocate(MEMORY, [f"{gpus.read()[0].uuid}/memory/0"]))
                assert "the API server does not tell which pods there are" in refused
            finally:
                plugin.send_signal(signal.SIGTERM)
                _, said = await asyncio.wait_for(plugin.communicate(), WITHIN_S)
            assert plugin.returncode == 0, said.decode()

    in_time(run)


def test_a_machine_without_gpus_is_told_what_to_do(folder: Path, tmp_path: Path) -> None:
    async def run() -> tuple[int | None, str]:
        plugin = await asyncio.create_subprocess_exec(
            *command(folder), env={"PATH": "/usr/bin"}, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(plugin.communicate(), 3 * WITHIN_S)
        return plugin.returncode, said.decode()

    code, said = asyncio.run(run())
    assert code == 2
    assert "NVML cannot be used" in said
    assert "Traceback" not in said
