"""The limits file: what may stand in it, which one counts, and that a change of it is heeded."""

import os
from pathlib import Path

import pytest

from batuta.gpu.device_plugin.enforcement import LIBRARY_PATH, PRELOAD_PATH, container_mounts
from batuta.gpu.native_libraries import compile_share, native_sources
from batuta.gpu.share.cards import demand_paths
from batuta.gpu.share.limits import (
    LIMITS_FORMAT,
    LIMITS_PATH,
    DeviceLimit,
    ShareLimits,
    from_text,
    read_limits,
    share_environment,
    to_text,
    write_limits,
)
from batuta.spec.problem import InputError
from tests.gpu.share.containers import DRIVER, OUT_OF_MEMORY, container, limit, said
from tests.support.vgpu import VirtualNode, compiler

ALL = ShareLimits(
    "train-7",
    Path("/run/batuta share/train-7/region"),
    (DeviceLimit("GPU-1", 4096, 50, 30, 200), DeviceLimit("GPU-2")),
    Path("/run/batuta share/cards"),
)
NOBODY = 65534
ASK = "start(); print(allocate(1)[0], info())"


def test_what_is_written_is_read(tmp_path: Path):
    path = tmp_path / "folder" / "limits"
    write_limits(path, ALL)
    assert read_limits(path) == ALL
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["limits"]


def test_the_text_is_what_the_library_reads():
    assert to_text(ALL).splitlines() == [
        "batuta-share 1",
        "container train-7",
        "region /run/batuta share/train-7/region",
        "cards /run/batuta share/cards",
        "device GPU-1 memory_mib=4096 compute_percent=50 soft_compute_percent=30 weight=200",
        "device GPU-2 weight=100",
    ]


def test_all_that_is_wrong_with_limits_is_said_at_once(tmp_path: Path):
    wrong = ShareLimits(
        "two words",
        Path("relative"),
        (
            DeviceLimit("GPU-1", -1, 0, 101, 0),
            DeviceLimit("GPU-1", compute_percent=30, soft_compute_percent=40),
            DeviceLimit("a b"),
        ),
    )
    with pytest.raises(InputError) as refused:
        write_limits(tmp_path / "limits", wrong)
    said = str(refused.value)
    for words in (
        *("container: a word", "region: an absolute path", "GPU-1 is named twice", "'a b' is no UUID"),
        *("memory_mib: from 0", "compute_percent: from 1 to 100, not 0", "from 1 to 100, not 101"),
        *("at most the hard limit of 30, not 40", "weight: from 1", "name the folder `cards`"),
    ):
        assert words in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", ["f:1: the first line is not 'batuta-share 1'"]),
        ("batuta-share 2\n", ["f:1: the first line"]),
        (
            f"{LIMITS_FORMAT}\nregio /r\ndevice GPU-1 memory_mb=1 weight=x\ncontainer a\ncontainer b\n",
            [
                "f:2: unknown: 'regio' (did you mean region?)",
                "f:3: unknown: 'memory_mb=1' (did you mean memory_mib?)",
                "f:3: weight: a whole number, not 'x'",
                "f:5: 'container' a second time",
                "f: no line 'region'",
            ],
        ),
    ],
    ids=["empty", "another version", "many"],
)
def test_a_file_that_is_wrong_is_refused_with_place_and_fix(text: str, complaints: list[str]):
    with pytest.raises(InputError) as refused:
        from_text(text, "f")
    for complaint in complaints:
        assert complaint in str(refused.value)


def test_the_library_reads_what_python_writes(node: VirtualNode):
    place = container(node, limit(node, 300, compute_percent=60, soft_compute_percent=20, weight=7), cards=True)
    assert place.run_python(ASK) == "0 (299, 300)\n"
    device = place.device()
    assert device.limit_bytes == 300 << 20
    assert (device.hard_percent, device.soft_percent, device.weight) == (60, 20, 7)
    assert place.read().container == "one"


def test_without_limits_the_library_only_passes_on(node: VirtualNode, tmp_path: Path):
    place = container(node, limit(node, 100))
    done = place.run([node.python, "-c", DRIVER + ASK], BATUTA_SHARE_LIMITS="")
    assert (done.stdout, done.stderr) == ("0 (15359, 15360)\n", "")
    assert not place.limits.region.exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o664), "others than its owner may write it"),
        (lambda path: path.chmod(0o646), "others than its owner may write it"),
        (lambda path: os.chown(path, NOBODY, NOBODY), "it does not belong to root"),
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: (path.unlink(), path.mkdir()), "not a file"),
        (lambda path: path.write_text("nonsense\n"), "line 1 cannot be read"),
        (
            lambda path: path.write_text(f"{LIMITS_FORMAT}\nregion /r\ndevice GPU-1 weight=0\n"),
            "line 3 cannot",
        ),
        (
            lambda path: path.write_text(f"{LIMITS_FORMAT}\nregion /absent/region\n"),
            "cannot use /absent/region",
        ),
    ],
    ids=["group", "others", "owner", "absent", "folder", "nonsense", "number", "region"],
)
def test_limits_that_cannot_be_heeded_mean_that_nothing_is_given(node: VirtualNode, spoil, words: str):
    place = container(node, limit(node, 100))
    if "root" in words and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    spoil(place.limits_path)
    done = place.run([node.python, "-c", DRIVER + "start(); print(allocate(1)[0], allocate(1)[0])"])
    assert done.stdout == f"{OUT_OF_MEMORY} {OUT_OF_MEMORY}\n"
    assert done.stderr.count("batuta share: ") == 1
    assert words in done.stderr


def test_where_root_has_set_limits_the_environment_cannot_name_others(tmp_path: Path, node: VirtualNode):
    # given a library that looks for root's file in a place of this test
    roots = tmp_path / "etc" / "limits"
    library = tmp_path / "libbatuta-share.so"
    compile_share(library, native_sources(), compiler(), ["-O0", f'-DSHARE_LIMITS_PATH="{roots}"'])
    place = container(node, limit(node, 1000), library=library)
    # when there is none, then the environment's counts
    assert place.run_python(ASK) == "0 (999, 1000)\n"
    # when there is one, then only that
    if os.getuid() == 0:
        write_limits(roots, ShareLimits("roots", tmp_path / "region", (limit(node, 50),)))
        assert place.run_python(ASK) == "0 (49, 50)\n"
        os.chown(roots, NOBODY, NOBODY)
        assert place.run_python(ASK) == f"{OUT_OF_MEMORY} (15360, 15360)\n"


def test_processes_that_run_heed_limits_that_change(node: VirtualNode):
    # given a process that keeps asking
    place = container(node, limit(node, 100))
    code = """
import time
start()
while True:
    result, address = allocate(150 * MIB)
    print(result, flush=True)
    if result == 0:
        break
    time.sleep(0.02)
"""
    asking = place.start([node.python, "-c", DRIVER + code])
    assert said(asking) == str(OUT_OF_MEMORY)
    # when the limit is raised, then it gets what it asks for
    place.allow(limit(node, 200))
    answers = asking.communicate(timeout=30)[0].split()
    assert answers[-1] == "0"
    assert place.device().limit_bytes == 200 << 20


def test_a_change_that_cannot_be_read_changes_nothing(node: VirtualNode):
    place = container(node, limit(node, 100))
    told = place.run_python(
        """
import time
start()
print(allocate(60 * MIB)[0])
open(sys.argv[1], "w").write("nonsense")
for _ in range(6):
    time.sleep(0.1)
    result = allocate(60 * MIB)[0]
print(result, info())
""",
        str(place.limits_path),
    )
    assert told.splitlines() == ["0", f"{OUT_OF_MEMORY} (40, 100)"]


def test_what_a_process_preloads_already_stays(tmp_path: Path):
    library = Path("/lib/share.so")
    base = {"LD_PRELOAD": "/lib/a.so /lib/share.so:/lib/b.so"}
    assert share_environment(tmp_path / "limits", library, base) == {
        "LD_PRELOAD": "/lib/share.so:/lib/a.so:/lib/b.so",
        "BATUTA_SHARE_LIMITS": str(tmp_path / "limits"),
    }


def test_a_container_may_write_its_region_and_what_it_wants_of_its_own_cards_and_nothing_else():
    mounts = container_mounts(Path("/l.so"), Path("/preload"), Path("/node/train-7/limits"), ALL)
    assert [(str(one.container_path), one.read_only) for one in mounts] == [
        (str(LIBRARY_PATH), True),
        (str(PRELOAD_PATH), True),
        (str(LIMITS_PATH.parent), True),
        ("/run/batuta share/cards", True),
        ("/run/batuta share/train-7", False),
        *((str(path), False) for path in demand_paths(ALL)),
    ]
