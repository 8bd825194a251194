"""Programs of other people, unmodified from PyPI, take virtual GPUs for real ones."""

import json

import pytest

from tests.support.vgpu import VirtualNode

GIB = 1 << 30
DRIVER = """
import numpy
from cuda.bindings import driver

def ok(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(driver.cuInit(0))
context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(1))))
ok(driver.cuCtxSetCurrent(context))
"""
HOLDER = DRIVER + "ok(driver.cuMemAlloc(1 << 30)); print('holding', flush=True); input()"


def test_cuda_bindings_copies_launches_and_is_refused(equipped: VirtualNode):
    said = equipped.run_python(
        DRIVER
        + """
there = ok(driver.cuMemAlloc(8000))
data, back = numpy.arange(1000), numpy.zeros(1000, dtype=int)
ok(driver.cuMemcpyHtoD(there, data.ctypes.data, data.nbytes))
ok(driver.cuMemcpyDtoH(back.ctypes.data, there, back.nbytes))
image = b".version 8.0\\n.target sm_75\\n.visible .entry spin_vgpu_2ms() { ret; }\\0"
kernel = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(image)), b"spin_vgpu_2ms"))
begin, end = (ok(driver.cuEventCreate(0)) for _ in range(2))
ok(driver.cuEventRecord(begin, 0))
for _ in range(5):
    ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0))
ok(driver.cuEventRecord(end, 0))
ok(driver.cuEventSynchronize(end))
print((data == back).all(), ok(driver.cuEventElapsedTime(begin, end)) >= 10, ok(driver.cuMemGetInfo()))
print(driver.cuMemAlloc(1 << 40)[0].name, driver.cuMemcpyDtoH(back.ctypes.data, 4096, 8)[0].name)
"""
    )
    whole = equipped.read()[1].memory_bytes
    assert said.splitlines() == [
        f"True True ({whole - 8192}, {whole})",
        "CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_INVALID_VALUE",
    ]


def test_gpustat_and_nvitop_show_who_has_the_memory(equipped: VirtualNode):
    # given a process with 1 GiB of GPU 1
    holder = equipped.start_python(HOLDER)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    # when gpustat looks
    found = equipped.run([equipped.python, "-m", "gpustat", "--json"])
    assert found.returncode == 0, found.stderr
    gpus = json.loads(found.stdout)["gpus"]
    # then it sees two T4s, and the process on the second
    assert [gpu["name"] for gpu in gpus] == ["Tesla T4", "Tesla T4"]
    assert [gpu["memory.used"] for gpu in gpus] == [0, 1024]
    assert [(one["pid"], one["gpu_memory_usage"]) for one in gpus[1]["processes"]] == [(holder.pid, 1024)]
    # and nvitop sees the same
    said = equipped.run_python(
        "import nvitop\n"
        "print([(one.name(), one.memory_used(), [(pid, held.gpu_memory())\n"
        "    for pid, held in one.processes().items()]) for one in nvitop.Device.all()])"
    )
    assert said == f"{[('Tesla T4', 0, []), ('Tesla T4', GIB, [(holder.pid, GIB)])]}\n"
    page = equipped.run([equipped.python, "-m", "nvitop", "--once", "--ascii"])
    assert page.returncode == 0, page.stderr
    assert "1024MiB / 15360MiB" in page.stdout
    assert str(holder.pid) in page.stdout
    holder.communicate("\n", timeout=30)


def test_numba_compiles_launches_and_synchronizes_a_kernel(equipped: VirtualNode):
    # given a kernel in Python, which numba compiles for the model's compute capability
    program = """
import numpy, warnings
from numba import cuda
warnings.simplefilter("ignore")
@cuda.jit
def add_vgpu_2ms(x):
    place = cuda.grid(1)
    if place < x.size:
        x[place] += 1
there = cuda.to_device(numpy.arange(1000.0))
stream = cuda.stream()
begin, end = cuda.event(), cuda.event()
begin.record(stream)
for _ in range(10):
    add_vgpu_2ms[32, 64, stream](there)
end.record(stream)
stream.synchronize()
print(cuda.event_elapsed_time(begin, end) >= 20, (there.copy_to_host() == numpy.arange(1000.0)).all())
print(*cuda.get_current_device().compute_capability, len(cuda.gpus))
"""
    # when it runs, then it takes its time, and the data is there as before: nothing was computed
    assert equipped.run_python(program).splitlines() == ["True True", "7 5 2"]
    assert equipped.read()[0].launches == 10


@pytest.mark.parametrize("runtime", ["cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12"])
def test_the_runtime_api_is_told_that_there_is_no_gpu_for_it(equipped: VirtualNode, runtime: str):
    # Frameworks take any other answer for a driver that is broken, and die of it.
    said = equipped.run_python(
        f"""
import ctypes, nvidia, pynvml
count, runtime = ctypes.c_int(-1), ctypes.CDLL(nvidia.__path__[0] + "/{runtime}")
code = runtime.cudaGetDeviceCount(ctypes.byref(count))
runtime.cudaGetErrorName.restype = ctypes.c_char_p
pynvml.nvmlInit()
print(runtime.cudaGetErrorName(code).decode(), pynvml.nvmlDeviceGetCount())
"""
    )
    assert said.split() == ["cudaErrorNoDevice", "2"]
