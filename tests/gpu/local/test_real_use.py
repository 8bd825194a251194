"""Real GPUs are measured by NVML; here the virtual GPU's library is taken for NVIDIA's."""

import json

from tests.support.vgpu import VirtualNode

SPINS = """
import ctypes
from batuta.demo.training import find_device
device = find_device()
print("ready", flush=True)
while True:
    device.spend(0.05)
"""
MEASURES = """
import json, sys, time
from batuta.gpu.local_nodes import NvmlUtilisation
first, second = sys.argv[1:]
use = NvmlUtilisation({"a": [first], "b": [second]})
for _ in range(6):
    use.sample()
    time.sleep(0.2)
print(json.dumps({node: [own.gpus, dict(own.jobs)] for node, own in use.look().items()}))
"""


def test_the_gpus_of_a_machine_are_divided_among_its_nodes(node: VirtualNode):
    # given a job that keeps the second GPU busy
    uuids = [gpu.uuid for gpu in node.read()]
    spinning = node.start_python(SPINS, CUDA_VISIBLE_DEVICES="1", BATUTA_JOB_ID="7")
    assert spinning.stdout is not None
    assert spinning.stdout.readline() == "ready\n"
    # when NVML is asked for a while
    done = node.run([node.python, "-c", MEASURES, *uuids])
    spinning.kill()
    spinning.communicate(timeout=30)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # then the node that has it is busy, the other one is not, and it is known by whom
    assert found["a"][0] == [0.0]
    assert found["b"][0][0] > 0.5
    assert found["b"][1]["7"] > 0.3
