"""The two libraries: how they are compiled, what they export, and that their calls stay inside."""

import ctypes
import re
import subprocess
from pathlib import Path

import pynvml
import pytest

from batuta.gpu.native_libraries import (
    LINK_FLAGS,
    VGPU_LIBRARIES,
    compile_vgpu_libraries,
    native_sources,
    vgpu_libraries,
)
from batuta.gpu.vgpu.device_file import MODELS
from batuta.spec.problem import InputError
from tests.support.vgpu import STRICT, VirtualNode, compile_program, compiler, libraries

NOT_SUPPORTED = 3


def test_the_sources_compile_without_a_warning(tmp_path: Path):
    compile_vgpu_libraries(tmp_path, native_sources(), compiler(), ("-O1", *STRICT))
    assert {file.name for file in tmp_path.iterdir()} == set(VGPU_LIBRARIES)


def test_they_are_compiled_once_for_each_version_of_the_sources():
    # given that somebody has compiled them
    folder = libraries()
    before = (folder / "libcuda.so.1").stat().st_mtime_ns
    # when they are asked for again, then nothing is compiled
    assert vgpu_libraries() == folder
    assert (folder / "libcuda.so.1").stat().st_mtime_ns == before


def test_without_a_compiler_it_is_said_what_to_install(tmp_path, monkeypatch):
    compiler()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputError, match="install gcc or clang"):
        vgpu_libraries()


def test_what_the_compiler_says_is_passed_on(tmp_path: Path):
    native = tmp_path / "native"
    (native / "vgpu").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot compile libcuda"):
        compile_vgpu_libraries(tmp_path / "out", native, compiler())


@pytest.mark.parametrize("program", ["exercise", "look"])
def test_a_program_in_c_finds_all_as_it_should_be(tmp_path: Path, node: VirtualNode, program: str):
    done = node.run([compile_program(tmp_path, program)])
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr


def test_sanitizers_find_nothing(tmp_path: Path, node: VirtualNode):
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    try:
        compile_vgpu_libraries(tmp_path / "checked", native_sources(), compiler(), flags)
    except InputError:
        pytest.skip("needs a compiler with sanitizers: apt-get install libasan8 libubsan1")
    for name in ("exercise", "look"):
        program = compile_program(tmp_path, name, *flags, against=tmp_path / "checked")
        done = node.run([program], LD_LIBRARY_PATH=str(tmp_path / "checked"))
        assert (done.returncode, done.stdout) == (0, "all well\n"), done.stderr


def test_every_function_that_nvidia_ml_py_knows_is_there():
    known = set(re.findall(r"""FunctionPointer\(['"](nvml\w+)['"]""", Path(pynvml.__file__).read_text()))
    assert len(known) > 300
    library = ctypes.CDLL(str(libraries() / "libnvidia-ml.so.1"))
    assert [name for name in sorted(known) if not hasattr(library, name)] == []


@pytest.mark.parametrize("name", ["nvmlDeviceGetMigMode", "nvmlDeviceGetFanSpeed", "nvmlVgpuInstanceGetVmID"])
def test_what_is_not_modelled_is_not_supported(name: str):
    assert getattr(ctypes.CDLL(str(libraries() / "libnvidia-ml.so.1")), name)() == NOT_SUPPORTED


def test_calls_inside_the_library_cannot_be_intercepted(tmp_path: Path, node: VirtualNode):
    # given a library that is loaded first and has a function that ours calls inside
    interposer = tmp_path / "interposer.so"
    subprocess.run(
        [compiler(), "-shared", "-fPIC", "-o", interposer, "tests/gpu/programs/interposer.c"],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    program = compile_program(tmp_path, "pooled")
    # when memory is taken through it, then the call stays inside
    done = node.run([program], LD_PRELOAD=str(interposer))
    assert done.stdout.splitlines() == ["result 0", "intercepted inside: 0"]
    # and it is the flag that does it: without, the same call goes astray
    open_flags = [flag for flag in LINK_FLAGS if "symbolic" not in flag]
    assert len(open_flags) == len(LINK_FLAGS) - 1
    _compile_without_symbolic(tmp_path / "open", open_flags)
    astray = node.run([program], LD_PRELOAD=str(interposer), LD_LIBRARY_PATH=str(tmp_path / "open"))
    assert astray.stdout.splitlines() == ["result 999", "intercepted inside: 1"]


def _compile_without_symbolic(folder: Path, flags: list[str]) -> None:
    native = native_sources()
    folder.mkdir()
    files = sorted((native / "vgpu").glob("driver_*.c"))
    shared = [native / "vgpu" / name for name in ("model.c", "processes.c", "timeline.c")]
    subprocess.run(
        [
            *(compiler(), "-std=c11", "-O0", "-fPIC", "-fvisibility=hidden", "-pthread", *flags),
            *("-I", native / "include", "-I", native / "vgpu"),
            *("-o", folder / "libcuda.so.1"),
            *shared,
            *files,
        ],
        check=True,
    )


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_what_it_says(tmp_path: Path, model: str):
    from batuta.gpu.devices import short_name

    node = VirtualNode.make(tmp_path, gpus=1, model=model)
    (gpu,) = node.read()
    assert short_name(gpu.name) == model
    assert gpu.memory_bytes == MODELS[model].memory_bytes
