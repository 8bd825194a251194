"""The memory of a container: what its processes have together, whoever ends how."""

import os
from pathlib import Path

import pytest

from tests.gpu.share.attacks import SHARED
from tests.gpu.share.containers import (
    DRIVER,
    MIB,
    OUT_OF_MEMORY,
    container,
    end,
    eventually,
    kill,
    limit,
    said,
)
from tests.support.vgpu import VirtualNode


def test_processes_of_a_container_share_its_limit(node: VirtualNode):
    place = container(node, limit(node, 100))
    first, second, third = place.hold(60), place.hold(30), place.hold(20)
    answers = sorted((said(first), said(second), said(third)))
    # whichever came last: 110 MiB do not fit, two of them do
    assert answers == ["0", "0", str(OUT_OF_MEMORY)]
    assert place.device().used_bytes < 100 * MIB
    for process in (first, second, third):
        end(process)


def test_another_container_has_a_limit_of_its_own(node: VirtualNode):
    first = container(node, limit(node, 100))
    second = container(node, limit(node, 100), name="two")
    holders = first.hold(100), second.hold(100)
    assert [said(one) for one in holders] == ["0", "0"]
    assert node.read()[0].used_bytes == 200 * MIB
    for one in holders:
        end(one)


@pytest.mark.parametrize("leave", [end, kill], ids=["ends", "is killed"])
def test_memory_is_free_at_the_next_call_when_its_owner(node: VirtualNode, leave):
    # given a process that waits, and one that has all
    place = container(node, limit(node, 100))
    code = "start(); print('ready', flush=True); input(); print(info(), allocate(100 * MIB)[0])"
    waiting = place.start([node.python, "-c", DRIVER + code])
    assert said(waiting) == "ready"
    owner = place.hold(100)
    assert said(owner) == "0"
    # when that one is gone, then the very next call knows
    leave(owner)
    assert waiting.communicate("\n", timeout=30)[0] == "(100, 100) 0\n"


def test_one_that_is_dead_but_not_buried_has_nothing(node: VirtualNode):
    place = container(node, limit(node, 100))
    owner = place.hold(100)
    assert said(owner) == "0"
    owner.kill()
    stat = Path(f"/proc/{owner.pid}/stat")
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert place.run_python("start(); print(info())") == "(100, 100)\n"
    end(owner)


def test_all_who_report_memory_tell_the_limit(node: VirtualNode):
    place = container(node, limit(node, 1000))
    told = place.run_python(
        """
import pynvml
start()
address = allocate(300 * MIB)[1]
old_free, old_total, all, old_all = ctypes.c_uint(), ctypes.c_uint(), c_size_t(), ctypes.c_uint()
ok(cuda.cuMemGetInfo(byref(old_free), byref(old_total)))
ok(cuda.cuDeviceTotalMem_v2(byref(all), 0)); ok(cuda.cuDeviceTotalMem(byref(old_all), 0))
pynvml.nvmlInit()
handle, other = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)
first = pynvml.nvmlDeviceGetMemoryInfo(handle)
second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
print(info(), old_free.value // MIB, old_total.value // MIB, all.value // MIB, old_all.value // MIB)
print([one // MIB for one in (first.total, first.free, first.used, second.total, second.free, second.used)])
print(pynvml.nvmlDeviceGetMemoryInfo(other).total // MIB)
"""
    )
    assert told.splitlines() == [
        "(700, 1000) 700 1000 1000 1000",
        "[1000, 700, 300, 1000, 700, 300]",
        "15360",
    ]


def test_a_card_that_is_fuller_than_the_container_says_so(node: VirtualNode):
    # given a neighbour that has nearly all of the card
    neighbour = container(node, limit(node), name="two").hold(15000)
    assert said(neighbour) == "0"
    # when a container asks for what its limit allows, then it hears what is really left
    place = container(node, limit(node, 1000))
    assert place.run_python("start(); print(info(), allocate(900 * MIB)[0])") == f"(360, 1000) {OUT_OF_MEMORY}\n"
    end(neighbour)
    # and nothing stayed reserved
    assert place.run_python("start(); print(info(), allocate(900 * MIB)[0])") == "(1000, 1000) 0\n"


def test_a_gpu_that_was_not_given_gives_no_memory(node: VirtualNode):
    place = container(node, limit(node, 100))
    assert place.run_python("start(1); print(allocate(1)[0], info())") == f"{OUT_OF_MEMORY} (0, 0)\n"


def test_without_a_memory_limit_memory_is_counted_all_the_same(node: VirtualNode):
    place = container(node, limit(node, compute_percent=50))
    holder = place.hold(5000)
    assert said(holder) == "0"
    assert place.device().used_bytes == 5000 * MIB
    assert place.device().limit_bytes is None
    end(holder)


def test_memory_by_handle_is_charged_until_handle_and_mapping_are_gone(node: VirtualNode):
    place = container(node, limit(node, 64))
    told = place.run_python(
        """
class Where(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int * 2), ("rest", ctypes.c_char * 16)]
start()
where, handle, again, address = Where(1, 0, (1, 0)), c_uint64(), c_uint64(), c_uint64()
size = c_size_t(32 * MIB)
ok(cuda.cuMemCreate(byref(handle), size, byref(where), c_uint64(0)))
ok(cuda.cuMemAddressReserve(byref(address), size, c_size_t(0), c_uint64(0), c_uint64(0)))
ok(cuda.cuMemMap(address, size, c_size_t(0), handle, c_uint64(0)))
ok(cuda.cuMemRelease(handle))
print("mapped", info())
ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address.value + MIB)))
ok(cuda.cuMemUnmap(address, size))
print("held again", info(), cuda.cuMemCreate(byref(handle), c_size_t(34 * MIB), byref(where), c_uint64(0)))
ok(cuda.cuMemRelease(again))
print("gone", info(), cuda.cuMemRelease(again))
"""
    )
    assert told.splitlines() == [
        "mapped (32, 64)",
        f"held again (32, 64) {OUT_OF_MEMORY}",
        "gone (64, 64) 1",
    ]


def test_a_context_that_ends_takes_its_memory_along(node: VirtualNode):
    place = container(node, limit(node, 100))
    told = place.run_python(
        """
start()
kept, other = allocate(10 * MIB), c_void_p()
ok(cuda.cuCtxCreate_v2(byref(other), 0, 0))
for _ in range(2000):
    ok(allocate(20 << 10)[0])
print(info())
ok(cuda.cuCtxDestroy_v2(other))
print(info())
ok(cuda.cuDevicePrimaryCtxReset_v2(0)); start()
print(info())
"""
    )
    assert told.splitlines() == ["(50, 100)", "(90, 100)", "(100, 100)"]


def test_frees_of_what_was_never_allocated_change_nothing(node: VirtualNode):
    place = container(node, limit(node, 100))
    told = place.run_python(
        """
start()
address = allocate(40 * MIB)[1]
print(*(cuda.cuMemFree_v2(c_uint64(wrong)) for wrong in (address.value + 512, 12345, 0)))
print(info(), cuda.cuMemFree_v2(address), info(), cuda.cuMemFree_v2(address), info())
"""
    )
    assert told.splitlines() == ["1 1 0", "(60, 100) 0 (100, 100) 1 (100, 100)"]


def test_the_child_of_a_fork_neither_has_nor_frees_what_its_parent_has(node: VirtualNode):
    place = container(node, limit(node, 100))
    anew = DRIVER + "start(); print(allocate(31 * MIB)[0], allocate(30 * MIB)[0])"
    told = place.run_python(
        """
import subprocess
start()
address = allocate(40 * MIB)[1]
child = os.fork()
if child == 0:
    cuda.cuMemFree_v2(address)  # the driver refuses it in a child
    allocate(10 * MIB)
    os._exit(0)
print(os.waitpid(child, 0)[1], info(), cuda.cuMemFree_v2(address), info())
# and a child that starts anew is a process of the container like any other
allocate(70 * MIB)
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True).stdout.strip())
""",
        anew,
    )
    assert told.splitlines() == ["0 (60, 100) 0 (100, 100)", f"{OUT_OF_MEMORY} 0"]


def test_a_program_that_becomes_another_begins_anew(node: VirtualNode):
    place = container(node, limit(node, 100))
    then = DRIVER + "start(); print(allocate(90 * MIB)[0])"
    told = place.run_python(
        """
start()
print(allocate(90 * MIB)[0], flush=True)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
""",
        then,
    )
    assert told.split() == ["0", "0"]


def test_cuda_bindings_and_numba_meet_the_limit(equipped: VirtualNode):
    place = container(equipped, limit(equipped, 100))
    done = place.run(
        [
            *(equipped.python, "-c"),
            """
import warnings
warnings.simplefilter("ignore")
from cuda.bindings import driver
from numba import cuda
cuda.current_context()
print(cuda.current_context().get_memory_info(), driver.cuMemAlloc(101 << 20)[0].name)
held = cuda.device_array(90 << 20, dtype="uint8")
print(driver.cuMemGetInfo()[1:], driver.cuMemAllocAsync(11 << 20, 0)[0].name)
""",
        ]
    )
    assert done.returncode == 0, done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == f"({10 * MIB}, {100 * MIB}) CUDA_ERROR_OUT_OF_MEMORY"


def test_users_of_a_container_share_its_region_in_a_folder_like_tmp(node: VirtualNode):
    # given a region that one user has made, in a folder where everybody may make files
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    place = container(node, limit(node, 100))
    folder = place.limits.region.parent
    folder.chmod(0o1777)
    first = place.hold(40)
    assert said(first) == "0"
    os.chown(place.limits.region, 65533, 65533)
    # when another one uses it, then they have one account
    assert place.run_python("start(); print(info())") == "(60, 100)\n"
    end(first)


HEAP, BUFFER = 2, 1


@pytest.mark.parametrize("setting", [HEAP, BUFFER])
def test_a_heap_of_kernels_is_memory_of_the_container(node: VirtualNode, setting: int):
    place = container(node, limit(node, 100))
    told = place.run_python(
        """
setting = int(sys.argv[1])
start()
def heap(mib):
    return cuda.cuCtxSetLimit(setting, c_size_t(mib * MIB)), info()[0]
print(heap(60), allocate(50 * MIB)[0], heap(101), heap(20), allocate(50 * MIB)[0])
""",
        str(setting),
    )
    assert told == "(0, 40) 2 (2, 40) (0, 80) 0\n"
    assert node.read()[0].used_bytes == 0


def test_a_heap_ends_with_its_context(node: VirtualNode):
    place = container(node, limit(node, 100))
    code = """
start()
ok(cuda.cuCtxSetLimit(2, c_size_t(60 * MIB)))
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
start()
print(info()[0])
"""
    assert place.run_python(code) == "100\n"


def test_stacks_are_charged_for_all_threads_that_the_card_can_hold(node: VirtualNode):
    place = container(node, limit(node, 100))
    code = """
start()
print(cuda.cuCtxSetLimit(0, c_size_t(1024)), info()[0], cuda.cuCtxSetLimit(0, c_size_t(64 << 10)), info()[0])
print(cuda.cuCtxSetLimit(0, c_size_t(2048)), info()[0])
"""
    # 40 multiprocessors of 1024 threads, with a KiB more for each than they have anyway
    assert place.run_python(code) == "0 100 2 100\n0 60\n"


HANDS_ON = """
result, handle = create(40)
descriptor = export(handle)
os.set_inheritable(descriptor, True)
program, code, limits = sys.argv[1:]
os.execve(program, [program, "-c", code, str(descriptor)], {**os.environ, "BATUTA_SHARE_LIMITS": limits})
"""


def test_memory_that_is_kept_by_a_descriptor_stays_charged(node: VirtualNode):
    place = container(node, limit(node, 100))
    # given memory that is exported and released, again and again
    told = place.run_python(
        SHARED
        + """
for _ in range(3):
    result, handle = create(40)
    if result == 0:
        export(handle)
        ok(cuda.cuMemRelease(handle))
    print(result, info()[0])
"""
    )
    # then what the descriptors keep counts
    assert told.splitlines() == ["0 60", "0 20", f"{OUT_OF_MEMORY} 20"]
    # and with the process it is free
    assert place.run_python("start(); print(info()[0])") == "100\n"


def test_memory_of_another_process_is_charged_to_the_one_that_maps_it(node: VirtualNode):
    # given two containers, and a descriptor of the first one's memory that reaches a process of the second
    giver, taker = (container(node, limit(node, size), name=name) for name, size in (("giver", 100), ("taker", 50)))
    takes = (
        DRIVER
        + SHARED
        + """
result, address, handle = mapped(int(sys.argv[1]), 40)
print(result, info()[0], allocate(20 * MIB)[0])
ok(cuda.cuMemUnmap(address, c_size_t(40 * MIB)))
ok(cuda.cuMemRelease(handle))
print(info()[0], allocate(20 * MIB)[0])
"""
    )
    told = giver.run_python(SHARED + HANDS_ON, str(node.python), takes, str(taker.limits_path))
    # then it counts there for as long as it is mapped
    assert told.splitlines() == [f"0 10 {OUT_OF_MEMORY}", "50 0"]


def test_more_of_another_process_than_the_limit_cannot_be_mapped(node: VirtualNode):
    giver, taker = (container(node, limit(node, size), name=name) for name, size in (("giver", 100), ("taker", 30)))
    takes = DRIVER + SHARED + "print(mapped(int(sys.argv[1]), 40)[0], info()[0])"
    told = giver.run_python(SHARED + HANDS_ON, str(node.python), takes, str(taker.limits_path))
    assert told == f"{OUT_OF_MEMORY} 30\n"
