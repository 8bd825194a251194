"""Programs are built once, from what is pinned, and a failure says what is wrong."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.kube import catalog, programs
from tests.support.kube.catalog import PROGRAMS, Program
from tests.support.kube.programs import BuildFailed, main, program
from tests.support.kube.toolchain import NoToolchain, find_go, go_version

GO_MOD = "module example.test/hello\n\ngo 1.26.0\n\n// example.test/hello v1.2.3\n"


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program of one file, and an empty cache."""
    wanted = Program("hello", "hello", ".", "// example.test/hello", ("main.version={version}",))
    try:
        find_go(go_version("1.26.0"))  # found before the cache is moved away
    except NoToolchain as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(catalog, "MODULES", tmp_path)
    monkeypatch.setitem(PROGRAMS, "hello", wanted)
    monkeypatch.setenv("BATUTA_CACHE", str(tmp_path / "cache"))
    wanted.source.mkdir()
    (wanted.source / "go.mod").write_text(GO_MOD)
    (wanted.source / "go.sum").write_text("")
    (wanted.source / "main.go").write_text("package main\nvar version string\nfunc main() { print(version) }\n")
    return wanted


def test_whoever_comes_second_waits_and_finds_it_built(hello, capsys):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(program, ["hello", "hello"])

    assert first == second
    assert first.is_file()
    assert capsys.readouterr().err.count("hello v1.2.3: built") == 1


def test_a_change_of_the_source_is_another_program(hello):
    before = program("hello")
    (hello.source / "main.go").write_text("package main\nfunc main() {}\n")

    assert program("hello") != before
    assert before.is_file(), "another clone may still use it"


def test_a_build_that_fails_says_what_the_compiler_said(hello):
    (hello.source / "main.go").write_text("package main\nfunc main() { nonsense() }\n")

    with pytest.raises(BuildFailed, match=r"hello v1\.2\.3 cannot be built(.|\n)*undefined: nonsense"):
        program("hello")


def test_programs_of_kubebuilder_are_taken_first(tmp_path, monkeypatch):
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    assert program("etcd") == tmp_path / "etcd"
    assert programs.why_not(["etcd"]) is None


def test_a_name_that_is_not_known_is_answered_with_those_that_are(capsys):
    assert main(["kube-proxy"]) == 2
    assert "not known: kube-proxy; programs: etcd, kube-apiserver" in capsys.readouterr().err
