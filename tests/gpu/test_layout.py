"""The device file: one layout in C and in Python, and clear words about a file that is something else."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from batuta.gpu.vgpu import device_file
from batuta.gpu.vgpu.device_file import Machine, create_device_file, find_model
from batuta.gpu.vgpu.snapshot import read_gpus
from batuta.spec.problem import InputError
from tests.support.vgpu import VirtualNode, compile_program

STRUCTURES = {
    "vgpu_run": device_file.Run,
    "vgpu_bucket": device_file.Bucket,
    "vgpu_event": device_file.Event,
    "vgpu_device": device_file.Device,
    "vgpu_share": device_file.Share,
    "vgpu_use": device_file.Use,
    "vgpu_process": device_file.Process,
    "vgpu_file": device_file.DeviceFile,
}
OPEN_BOTH = """
import ctypes
print(ctypes.CDLL("libcuda.so.1").cuInit(0), ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2())
"""
DRIVER_MISMATCH, RM_VERSION_MISMATCH = 803, 18
OPERATING_SYSTEM, NVML_OPERATING_SYSTEM = 304, 17
NO_DEVICE, DRIVER_NOT_LOADED = 100, 9


def test_c_and_python_agree_on_every_field(tmp_path: Path):
    # given what Python believes, as questions to the compiler
    believed, questions = [], []
    for name, structure in STRUCTURES.items():
        believed.append(f"{name} {ctypes.sizeof(structure)}")
        questions.append(f"SIZE({name});")
        for field, _ in structure._fields_:  # type: ignore[misc]
            place = getattr(structure, field)
            believed.append(f"{name}.{field} {place.offset} {place.size}")
            questions.append(f"FIELD({name}, {field});")
    (tmp_path / "fields.inc").write_text("\n".join(questions))
    # when it is asked
    program = compile_program(tmp_path, "layout", link=False)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    # then it says the same
    assert said == believed


def test_without_a_file_there_is_no_gpu(node: VirtualNode):
    assert node.run_python(OPEN_BOTH, BATUTA_VGPU="") == f"{NO_DEVICE} {DRIVER_NOT_LOADED}\n"


def test_a_file_of_another_layout_is_refused_by_all(node: VirtualNode):
    data = bytearray(node.path.read_bytes())
    data[8:12] = (device_file.LAYOUT + 1).to_bytes(4, "little")
    node.path.write_bytes(data)
    done = node.run(["python3", "-c", OPEN_BOTH])
    assert done.stdout == f"{DRIVER_MISMATCH} {RM_VERSION_MISMATCH}\n"
    assert f"has layout {device_file.LAYOUT + 1}, this library reads {device_file.LAYOUT}" in done.stderr
    with pytest.raises(InputError, match="batuta vgpu create --force"):
        read_gpus(node.path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data + b"\0", "damaged"),
        (lambda data: data[:20], "not a virtual GPU"),
        (lambda data: b"", "not a virtual GPU"),
        (lambda data: b"x" * len(data), "not a virtual GPU"),
    ],
    ids=["cut", "longer", "head only", "empty", "something else"],
)
def test_a_damaged_file_is_refused_by_all(node: VirtualNode, damage, words: str):
    node.path.write_bytes(damage(node.path.read_bytes()))
    done = node.run(["python3", "-c", OPEN_BOTH])
    assert done.stdout == f"{OPERATING_SYSTEM} {NVML_OPERATING_SYSTEM}\n"
    assert "batuta vgpu: " in done.stderr
    with pytest.raises(InputError, match=words):
        read_gpus(node.path)


def test_a_file_that_is_there_is_kept(tmp_path: Path):
    path = tmp_path / "node.vgpu"
    create_device_file(path, Machine(find_model("T4")))
    first = path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        create_device_file(path, Machine(find_model("T4")))
    assert path.read_bytes() == first
    create_device_file(path, Machine(find_model("A100"), gpus=2), overwrite=True)
    assert [gpu.name for gpu in read_gpus(path)] == ["NVIDIA A100-SXM4-40GB"] * 2


def test_the_same_label_gives_the_same_uuids(tmp_path: Path):
    def uuids(name: str, label: str) -> list[str]:
        create_device_file(tmp_path / name, Machine(find_model("T4"), gpus=2, label=label))
        return [gpu.uuid for gpu in read_gpus(tmp_path / name)]

    assert uuids("a", "node-1") == uuids("b", "node-1")
    assert len({*uuids("c", "node-1"), *uuids("d", "node-2"), *uuids("e", ""), *uuids("f", "")}) == 8


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    machine = Machine(find_model("T4"), gpus=17, numa_nodes=0, kernel_ns=0, context_bytes=1 << 40)
    with pytest.raises(InputError) as refused:
        create_device_file(tmp_path / "node.vgpu", machine)
    assert len(refused.value.problems) == 4
    assert not list(tmp_path.iterdir())
