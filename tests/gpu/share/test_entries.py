"""No way round the limits: every entry point, by every way that there is to it."""

import shutil
from pathlib import Path

import pytest

from batuta.gpu.native_libraries import compile_share, native_sources, share_probe
from tests.gpu.share.containers import Container, container, limit
from tests.support.vgpu import VirtualNode, compiler

ALLOCATIONS = (
    *("cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemAllocPitch_v2"),
    *("cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"),
    *("cuMemCreate", "cuArrayCreate", "cuArrayCreate_v2", "cuArray3DCreate", "cuArray3DCreate_v2"),
    *("cuMipmappedArrayCreate", "cuGraphAddMemAllocNode"),
    *("cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"),
)
LAUNCHES = tuple(
    f"{name}{variant}"
    for name in ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
    for variant in ("", "_ptsz")
)
WAYS = ("linked", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2")


def verdicts(place: Container, *words: str | Path) -> dict[tuple[str, str], str]:
    """What the probe says of each entry point and way."""
    lines = place.run([share_probe(), *words]).stdout.splitlines()
    return {(entry, way): verdict for entry, way, verdict, _ in (line.split("\t") for line in lines)}


@pytest.mark.parametrize("entries", [ALLOCATIONS, LAUNCHES], ids=["allocations", "launches"])
def test_every_entry_point_is_limited_by_every_way_to_it(node: VirtualNode, entries: tuple[str, ...]):
    place = container(node, limit(node, 64))
    words = ("entries",) if entries is ALLOCATIONS else ("launches", place.limits.region)
    assert verdicts(place, *words) == {(entry, way): "holds" for entry in entries for way in WAYS}


def test_what_was_refused_and_what_was_the_most_is_counted(node: VirtualNode):
    place = container(node, limit(node, 64))
    verdicts(place, "entries")
    device = place.device()
    assert device.refusals == len(ALLOCATIONS) * len(WAYS)
    assert (device.used_bytes, device.peak_bytes) == (0, 4 << 20)


def without_hooks(folder: Path, left_out: tuple[str, ...]) -> Path:
    """The library, compiled without standing before these functions."""
    native = folder / "native"
    shutil.copytree(native_sources() / "share", native / "share")
    shutil.copytree(native_sources() / "include", native / "include")
    table = native / "share" / "hooks.inc"
    lines = []
    for line in table.read_text().splitlines():
        kind, _, rest = line.partition("(")
        name = rest.partition(",")[0]
        wanted = name in left_out or f"{name}_ptsz" in left_out
        lines.append(line if kind == "CALL" or not wanted else f"CALL({name})")
        if wanted and kind == "STREAM_HOOK":
            lines.append(f"CALL({name}_ptsz)")
    table.write_text("\n".join(lines))
    exported = folder / "exported"
    exported.write_text(f"{{ global: *; local: {''.join(f'{name}; ' for name in left_out)} }};")
    made = folder / "libbatuta-share.so"
    compile_share(made, native, compiler(), ["-O0", f"-Wl,--version-script={exported}"])
    return made


def test_a_missing_hook_is_seen_as_an_escape_and_only_that_one(tmp_path: Path, node: VirtualNode):
    # given a library that does not stand before one of the functions
    place = container(node, limit(node, 64), library=without_hooks(tmp_path, ("cuMemAllocManaged",)))
    # when the same table is made, then that one is found to be open, by every way
    assert verdicts(place, "entries") == {
        (entry, way): "escapes" if entry == "cuMemAllocManaged" else "holds" for entry in ALLOCATIONS for way in WAYS
    }


def test_the_table_would_see_every_hook_missing(tmp_path: Path, node: VirtualNode):
    library = without_hooks(tmp_path, (*ALLOCATIONS, *LAUNCHES))
    place = container(node, limit(node, 64), library=library)
    escapes = {(entry, way): "escapes" for entry in ALLOCATIONS for way in WAYS}
    assert verdicts(place, "entries") == escapes
    # the region is there, because memory was asked about
    assert verdicts(place, "launches", place.limits.region) == {
        (entry, way): "escapes" for entry in LAUNCHES for way in WAYS
    }
