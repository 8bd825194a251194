"""torch as `pip install torch` brings it, CUDA's libraries included, in jobs on virtual GPUs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.client.client import Client
from tests.support.server_process import PlainServers
from tests.support.torch_install import stock_python
from tests.support.vgpu import compiler

pytestmark = pytest.mark.slow
WITHIN_S = 120.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """That of a server with two nodes of two virtual GPUs."""
    compiler()
    folder = tmp_path_factory.mktemp("stock-torch")
    with PlainServers(folder) as servers:
        server = servers.start(folder / "home", "--nodes", "2", "--gpus", "2")
        server.wait_ready()
        with server.client() as client:
            yield client
        server.end()


def test_torch_says_no_gpu_without_a_warning_and_nvml_sees_them(client: Client, tmp_path: Path) -> None:
    # given a script that asks all that frameworks ask before they choose a device
    script = tmp_path / "ask.py"
    script.write_text("""
import pynvml, torch
pynvml.nvmlInit()
print("NVML", pynvml.nvmlDeviceGetCount())
print("torch", torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available())
print("still", torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).sum().item())
""")
    # when a job runs it, and any warning would be an error
    job = client.submit(command=[str(stock_python()), "-W", "error", str(script)], gpus="2")
    over = client.wait(job, timeout_s=WITHIN_S)
    # then it hears a plain no, and there is nothing else in the log
    log = list(client.logs(job, follow=False))
    assert (over.state, log) == ("SUCCEEDED", ["NVML 2", "torch False 0 False", "still False 0 3.0"])
