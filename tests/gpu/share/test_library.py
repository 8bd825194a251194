"""The library: how it is compiled, what it exports, and that it is in nobody's way."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from batuta.gpu.native_libraries import (
    compile_probe,
    compile_share,
    native_sources,
    share_library,
    share_probe,
)
from batuta.gpu.share import cards, region
from batuta.gpu.share.cards import demand_paths
from batuta.gpu.share.limits import share_environment
from batuta.spec.problem import InputError
from tests.gpu.share.containers import container, limit
from tests.support.vgpu import STRICT, VirtualNode, compile_program, compiler

PROGRAMS = Path(__file__).parent / "programs"
STRUCTURES = {
    "share_device": region.Device,
    "share_use": region.Use,
    "share_process": region.Process,
    "share_region": region.Region,
    "share_tenant": cards.Tenant,
    "share_card": cards.Card,
    "share_demand": cards.Demand,
}


def test_the_sources_compile_without_a_warning(tmp_path: Path):
    compile_share(tmp_path / "library", native_sources(), compiler(), ("-O0", *STRICT))
    compile_probe(tmp_path / "probe", native_sources(), compiler(), ("-O0", *STRICT))


def test_it_is_compiled_once_for_each_version_of_the_sources():
    made = share_library()
    before = made.stat().st_mtime_ns
    assert share_library() == made
    assert made.stat().st_mtime_ns == before
    assert share_probe().parent == made.parent


def test_what_the_compiler_says_is_passed_on(tmp_path: Path):
    folder = tmp_path / "native" / "share"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match="no sources of the library"):
        compile_share(tmp_path / "made.so", tmp_path / "native", compiler())
    (folder / "broken.c").write_text("int broken(")
    with pytest.raises(InputError, match=r"cannot compile made\.so(.|\n)*broken"):
        compile_share(tmp_path / "made.so", tmp_path / "native", compiler())


def test_c_and_python_agree_on_every_field(tmp_path: Path):
    believed, questions = [], []
    for name, structure in STRUCTURES.items():
        believed.append(f"{name} {ctypes.sizeof(structure)}")
        questions.append(f"SIZE({name});")
        for field, _ in structure._fields_:  # type: ignore[misc]
            place = getattr(structure, field)
            believed.append(f"{name}.{field} {place.offset} {place.size}")
            questions.append(f"FIELD({name}, {field});")
    (tmp_path / "fields.inc").write_text("\n".join(questions))
    folders = [f"-I{tmp_path}", f"-I{native_sources() / 'share'}"]
    subprocess.run([compiler(), "-std=c11", *folders, "-o", tmp_path / "layout", PROGRAMS / "layout.c"], check=True)
    said = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == believed


def test_it_exports_its_hooks_and_nothing_else():
    table = (native_sources() / "share" / "hooks.inc").read_text()
    hooks = {"dlsym", *re.findall(r"^(?:NVML_)?HOOK\((\w+)", table, re.MULTILINE)}
    for name in re.findall(r"^STREAM_HOOK\((\w+)", table, re.MULTILINE):
        hooks |= {name, f"{name}_ptsz"}
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", share_library()], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == hooks


def test_sanitizers_find_nothing(tmp_path: Path, node: VirtualNode):
    # given the library with checks in it, and the checkers loaded before it
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O0")
    library = tmp_path / "libbatuta-share.so"
    try:
        compile_share(library, native_sources(), compiler(), (*flags, "-Wl,-z,undefs"))
    except InputError:
        pytest.skip("needs a compiler with sanitizers: apt-get install libasan8 libubsan1")
    checkers = [
        subprocess.run(
            [compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    place = container(node, limit(node, 256, compute_percent=90), library=library)
    # when all entry points and a program that uses many others run with it
    preloaded = ":".join([*checkers, str(library)])
    probe = str(share_probe())
    for command in (
        [probe, "entries"],
        [probe, "launches", str(place.limits.region)],
        [probe, "load", "0.2", "20,100", "waiting"],
        [probe, "load", "0.2", "20,100", "changing"],
        [str(compile_program(tmp_path, "exercise"))],
    ):
        done = place.run(command, LD_PRELOAD=preloaded, ASAN_OPTIONS="detect_leaks=0")
        # then nothing is found
        assert (done.returncode, done.stderr) == (0, ""), (command, done.stderr, done.stdout)


def test_sanitizers_find_nothing_in_files_that_hold_anything(tmp_path: Path, node: VirtualNode):
    # given the readers of region, card and demands with checks in them
    readers = ("region", "region_guard", "slots", "card", "card_file", "limits", "credit", "state")
    sources = [PROGRAMS / "corrupt.c", *(native_sources() / "share" / f"{name}.c" for name in readers)]
    folders = ("-I", native_sources() / "include", "-I", native_sources() / "share")
    flags = ("-std=c11", "-O1", "-g", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program = tmp_path / "corrupt"
    made = subprocess.run([compiler(), *flags, *folders, "-o", program, *sources], capture_output=True, check=False)
    if made.returncode != 0 and b"san" in made.stderr:
        pytest.skip("needs a compiler with sanitizers: apt-get install libasan8 libubsan1")
    assert made.returncode == 0, made.stderr
    place = container(node, limit(node, 256, soft_compute_percent=30), cards=True)
    neighbour = container(node, limit(node, 256, compute_percent=50), name="neighbour", cards=True)
    assert place.limits.cards is not None
    (demand,) = demand_paths(neighbour.limits)
    files = (place.limits.region, place.limits.cards / node.read()[0].uuid, demand)
    # when it works with them while they are spoilt, again and again
    env = os.environ | {"BATUTA_SHARE_LIMITS": str(place.limits_path)}
    done = subprocess.run([program, *files, "400"], env=env, capture_output=True, text=True, check=False, timeout=60)
    # then nothing is found
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_library_that_wraps_a_function_finds_the_next_and_not_itself(tmp_path: Path):
    wrapper, program = tmp_path / "next.so", tmp_path / "says"
    flags = ("-shared", "-fPIC", "-fno-builtin")
    subprocess.run([compiler(), *flags, "-o", wrapper, PROGRAMS / "next.c"], check=True)
    subprocess.run([compiler(), "-fno-builtin", "-o", program, PROGRAMS / "says.c"], check=True)
    for order in ((share_library(), wrapper), (wrapper, share_library())):
        env = os.environ | {"LD_PRELOAD": ":".join(map(str, order))}
        done = subprocess.run([program], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()) == (0, ["wrapped", "said"])


def test_a_program_without_a_gpu_does_not_notice_it(tmp_path: Path):
    # given limits that name a region that cannot be made
    env = os.environ | share_environment(tmp_path / "absent", share_library())
    # when a program runs that asks no driver, then nothing is read, made or said
    done = subprocess.run(["sh", "-c", "echo fine"], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("fine\n", "")
    assert not list(tmp_path.iterdir())


def test_musl_is_refused_in_words(tmp_path: Path):
    # given headers that do not say that they are glibc's, as musl's do not
    (tmp_path / "features.h").write_text("")
    refused = subprocess.run(
        [compiler(), "-nostdinc", f"-I{tmp_path}", "-fsyntax-only", native_sources() / "share" / "glibc.h"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "batuta share needs glibc: with musl (Alpine) limits would not hold" in refused.stderr


def test_it_asks_for_no_symbol_that_glibc_2_36_does_not_have():
    needed = subprocess.run(["objdump", "-T", share_library()], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", needed)}
    assert max(versions) <= (2, 36)
