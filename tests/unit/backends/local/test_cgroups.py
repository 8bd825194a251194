"""Where control groups are made, and what limits are called in both versions.

Version 2 is tested against folders that look like its file system: no controller acts on them.
"""

import os
from pathlib import Path

import pytest

from batuta.backends.local.cgroups import (
    CgroupsV1,
    CgroupsV2,
    ReplicaLimits,
    SharedLimits,
    find_cgroups,
    memory_limit_bytes,
    process_limit,
)
from batuta.backends.local.supervisor.containment import Containment, make, remove

LIMITS = ReplicaLimits(processes=100, memory_bytes=2**30, cpus=1.5, cpu_weight=2.0)
LIMITS_OF_SPEC = {"processes": 100, "all_processes": 5000, "memory_bytes": 2**30, "all_memory_bytes": 8 * 2**30}
SHARED = SharedLimits(memory_bytes=8 * 2**30, cpus=4, processes=5000)


def hierarchy(folder: Path, *files: str, **contents: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cgroup.procs", *files):
        (folder / name).touch()
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def proc(folder: Path, cgroup: str, *mounts: tuple[str, Path, str, str]) -> Path:
    """`/proc/self`: mounts are root, mount point, file system, and options."""
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup)
    lines = (
        f"{30 + n} 24 0:{n} {root} {point} rw,nosuid shared:9 - {kind} {kind} {options}\n"
        for n, (root, point, kind, options) in enumerate(mounts)
    )
    (folder / "mountinfo").write_text("".join(lines))
    return folder


def written(plan: dict, base: Path) -> dict[str, str]:
    settings = [*plan["base_settings"], *plan["settings"]]
    return {str(Path(path).relative_to(base)): value for path, value, _ in settings}


def test_version_1_is_found_below_the_groups_of_the_server(tmp_path: Path):
    for name in ("pids", "memory", "cpu"):
        hierarchy(tmp_path / name / "mine")
    here = proc(
        tmp_path / "proc",
        "3:pids:/mine\n2:memory:/mine\n1:cpu,cpuacct:/mine\n0::/\n",
        *(("/", tmp_path / name, "cgroup", f"rw,{name}") for name in ("pids", "memory", "cpu")),
    )
    found = find_cgroups(tmp_path / "home", here)
    assert isinstance(found, CgroupsV1)
    assert {name: base.parent for name, base in found.base.items()} == {
        name: tmp_path / name / "mine" for name in ("pids", "memory", "cpu")
    }
    assert len({base.name for base in found.base.values()}) == 1
    assert find_cgroups(tmp_path / "home", here) == found
    assert find_cgroups(tmp_path / "another", here) != found


def test_container_that_sees_a_part_of_the_hierarchy_uses_that(tmp_path: Path):
    for name in ("pids", "memory"):
        hierarchy(tmp_path / name)
    here = proc(
        tmp_path / "proc",
        "3:pids:/docker/abc\n2:memory:/docker/abc\n",
        *(("/docker/abc", tmp_path / name, "cgroup", f"rw,{name}") for name in ("pids", "memory")),
    )
    found = find_cgroups(tmp_path / "home", here)
    assert isinstance(found, CgroupsV1)
    assert found.base["pids"].parent == tmp_path / "pids"


def test_server_without_a_writable_hierarchy_has_no_groups(tmp_path: Path):
    here = proc(tmp_path / "proc", "3:pids:/\n2:memory:/\n0::/\n", ("/", tmp_path / "nowhere", "cgroup", "rw,pids"))
    assert find_cgroups(tmp_path / "home", here) is None
    assert find_cgroups(tmp_path / "home", tmp_path / "no-proc") is None


def v2(tmp_path: Path, *, members: str = "", enabled: str = "") -> Path:
    own = hierarchy(tmp_path / "unified" / "service", cgroup__controllers="cpu io memory pids")
    (own / "cgroup.procs").write_text(members)
    (own / "cgroup.subtree_control").write_text(enabled)
    hierarchy(tmp_path / "unified", cgroup__controllers="", cgroup__subtree_control="")
    return proc(tmp_path / "proc", "0::/service\n", ("/", tmp_path / "unified", "cgroup2", "rw"))


def test_version_2_is_found_where_controllers_are_delegated(tmp_path: Path):
    found = find_cgroups(tmp_path / "home", v2(tmp_path, enabled="cpu memory pids"))
    assert isinstance(found, CgroupsV2)
    assert found.base.parent == tmp_path / "unified" / "service"


def test_version_2_controllers_are_enabled_where_they_are_not_yet(tmp_path: Path):
    assert isinstance(find_cgroups(tmp_path / "home", v2(tmp_path)), CgroupsV2)
    assert (tmp_path / "unified/service/cgroup.subtree_control").read_text() == "+pids +memory +cpu +io"


def test_version_2_without_the_controllers_is_of_no_use(tmp_path: Path):
    here = v2(tmp_path)
    (tmp_path / "unified/service/cgroup.controllers").write_text("cpu")
    assert find_cgroups(tmp_path / "home", here) is None


def test_limits_in_the_words_of_version_1(tmp_path: Path):
    found = CgroupsV1({name: tmp_path / name / "all" for name in ("pids", "memory", "cpu")})
    plan = found.plan("run", LIMITS, SHARED)
    assert written(plan, tmp_path) == {
        "memory/all/memory.use_hierarchy": "1",
        "memory/all/memory.limit_in_bytes": str(8 * 2**30),
        "cpu/all/cpu.shares": "4096",
        "pids/all/pids.max": "5000",
        "pids/all/run/pids.max": "100",
        "memory/all/run/memory.limit_in_bytes": str(2**30),
        "memory/all/run/memory.memsw.limit_in_bytes": str(2**30),
        "cpu/all/run/cpu.shares": "2048",
        "cpu/all/run/cpu.cfs_period_us": "100000",
        "cpu/all/run/cpu.cfs_quota_us": "150000",
    }


def test_limits_in_the_words_of_version_2(tmp_path: Path):
    plan = CgroupsV2(tmp_path / "all").plan("run", LIMITS, SHARED)
    assert written(plan, tmp_path) == {
        "all/memory.max": str(8 * 2**30),
        "all/cpu.weight": "400",
        "all/cgroup.subtree_control": "+io",  # the last of several
        "all/pids.max": "5000",
        "all/run/pids.max": "100",
        "all/run/memory.max": str(2**30),
        "all/run/memory.swap.max": "0",
        "all/run/memory.oom.group": "1",
        "all/run/cpu.weight": "200",
        "all/run/cpu.max": "150000 100000",
    }
    assert [one[1] for one in plan["base_settings"] if one[0].endswith("subtree_control")] == [
        *("+pids +memory", "+cpu", "+io")
    ]


@pytest.mark.parametrize(
    ("events", "why", "sentence"),
    [
        ({"pids.events": "max 3\n"}, "process-limit", "stopped: more than 100 processes and threads"),
        ({"memory.events": "low 0\noom 1\noom_kill 2\n"}, "memory-limit", "out of memory: limit 1 GiB"),
        (
            {"memory.events": "oom 0\noom_kill 2\n"},
            "memory-limit",
            "out of memory: all jobs of this machine together may have 8 GiB",
        ),
    ],
)
def test_runner_reads_from_version_2_which_limit_was_reached(
    tmp_path: Path, events: dict[str, str], why: str, sentence: str, monkeypatch: pytest.MonkeyPatch
):
    plan = _files_of_version_2(tmp_path, monkeypatch)
    limits = {**LIMITS_OF_SPEC, "cgroup": plan}
    contained = Containment(limits)
    assert contained.exceeded() is None
    assert contained.wakes
    for name, text in events.items():
        (tmp_path / "all/run" / name).write_text(text)
    found = contained.exceeded()
    assert found is not None
    assert (found[0], found[2]) == (why, sentence)
    contained.forbid_forks()
    assert (tmp_path / "all/run/pids.max").read_text().startswith("0")


def test_no_replica_is_to_blame_for_what_all_jobs_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The kernel counts a fork that failed where it was tried, also if it was the limit of all that was reached."""
    contained = Containment({**LIMITS_OF_SPEC, "cgroup": _files_of_version_2(tmp_path, monkeypatch)})
    (tmp_path / "all/pids.current").write_text("4990\n")
    (tmp_path / "all/run/pids.current").write_text("20\n")
    (tmp_path / "all/run/pids.events").write_text("max 3\n")
    assert contained.exceeded() is None
    (tmp_path / "all/pids.current").write_text("120\n")
    assert contained.exceeded() is None
    (tmp_path / "all/run/pids.events").write_text("max 4\n")
    found = contained.exceeded()
    assert found is not None
    assert found[0] == "process-limit"


def _files_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The kernel has the files of a group there as soon as its folder is made."""
    real = os.mkdir

    def mkdir(path: str, mode: int = 0o777) -> None:
        real(path, mode)
        names = ("memory.max", "cpu.weight", "cgroup.subtree_control", "pids.max", "memory.swap.max", "cpu.max")
        hierarchy(Path(path), *names, "memory.oom.group", pids__events="max 0\n", memory__events="oom 0\noom_kill 0\n")
        (Path(path) / "pids.current").write_text("1\n")

    monkeypatch.setattr(os, "mkdir", mkdir)
    return CgroupsV2(tmp_path / "all").plan("run", LIMITS, SHARED)


def test_folders_that_cannot_be_made_leave_the_runner_to_watch(tmp_path: Path):
    plan = CgroupsV2(tmp_path / "not" / "there").plan("run", LIMITS, SHARED)
    limits = {"processes": 100, "memory_bytes": 2**30, "all_memory_bytes": 8 * 2**30, "cgroup": plan}
    assert Containment(limits).is_watched


def test_outer_group_stays_as_long_as_a_replica_has_one_inside(tmp_path: Path):
    plans = [
        {"base": [str(tmp_path / "all")], "base_settings": [], "folders": [folder], "settings": []}
        for folder in (f"{tmp_path}/all/a", f"{tmp_path}/all/b")
    ]
    for plan in plans:
        make(plan)
    remove(plans[0])
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["b"]
    remove(plans[1])
    assert not (tmp_path / "all").exists()


def test_limit_of_the_server_s_own_group_counts(tmp_path: Path):
    here = v2(tmp_path)
    assert memory_limit_bytes(here) is None
    (tmp_path / "unified/service/memory.max").write_text("max\n")
    assert memory_limit_bytes(here) is None
    (tmp_path / "unified/service/memory.max").write_text(f"{2**32}\n")
    assert memory_limit_bytes(here) == 2**32
    assert process_limit(here) is None
    (tmp_path / "unified/service/pids.max").write_text("600\n")
    assert process_limit(here) == 600
