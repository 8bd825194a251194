"""The whole way with a real mpirun: one command for the whole job, as many workers as it has GPUs."""

import shutil
from pathlib import Path

import pytest

from tests.support.server_process import PlainServers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt-get install openmpi-bin"),
]
TASK = """
name: workers
num_nodes: 2
resources: {accelerators: 2}
run: |
  mpirun --oversubscribe -np "$BATUTA_NUM_PROCS" \
    sh -c 'echo "worker $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, start $BATUTA_RESTART"'
  echo "slots: $(cat "$BATUTA_HOSTFILE")"
"""


def test_a_real_mpirun_gets_a_worker_per_gpu(tmp_path: Path) -> None:
    with PlainServers(tmp_path) as servers:
        server = servers.start(tmp_path / "home", "--nodes", "2", "--gpus", "2")
        server.wait_ready()
        with server.client() as client:
            job = client.submit(TASK)
            over = client.wait(job, timeout_s=60)
            log = list(client.logs(job))
            assert (over.state, over.kind) == ("SUCCEEDED", "mpi"), log
        server.end()
    assert sorted(line for line in log if line.startswith("worker")) == [
        f"worker {rank} of 4, start 0" for rank in range(4)
    ]
    assert "slots: localhost slots=4" in log
