"""Paths of a task are local, there, readable, and the user's own."""

import os
from pathlib import Path

import pytest

from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_paths import Mount, PathKind, PathRules


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in ("home/code", "home/data", "other"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/file.txt").write_text("x")
    return tmp_path / "home"


def parse(text: str, home: Path, **rules):
    return parse_task(f"run: x\n{text}", str(home / "task.yaml"), paths=PathRules(home, home, **rules))


def problems_of(text: str, home: Path, **rules) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(text, home, **rules)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("written", ["code", "./code", "~/code", "{home}/code", "data/../code", "$WHERE", "${WHERE}"])
def test_a_workdir_is_relative_to_the_task_file_or_absolute(home, written):
    task = parse(f"workdir: {written.replace('{home}', str(home))}\nenvs: {{WHERE: code}}", home)
    assert Path(task.workdir).resolve() == home / "code"
    assert Path(task.workdir).is_absolute()


def test_a_relative_path_starts_where_the_command_was_called_and_only_then_beside_the_file(tmp_path):
    called, beside = tmp_path / "called", tmp_path / "beside"
    for folder in ("called/both", "beside/both", "beside/only"):
        (tmp_path / folder).mkdir(parents=True)

    def read(text: str):
        rules = PathRules(called, tmp_path, beside=beside)
        return parse_task(f"run: x\n{text}", str(beside / "task.yaml"), paths=rules)

    both = read("workdir: both")
    assert both.workdir == str(called / "both")
    assert any("from where the command was called" in note and "--workdir" in note for note in both.notes)
    only = read("file_mounts: {data: only}")
    assert only.file_mounts == (Mount("data", str(beside / "only")),)
    assert any(f"{beside / 'only'} is used, beside the task file" in note for note in only.notes)
    assert not any("called" in note for note in read(f"workdir: {called}").notes)
    with pytest.raises(InputError, match=f"{called / 'nowhere'}' is not there"):
        read("workdir: nowhere")


def test_a_path_beside_the_file_is_as_little_a_way_out_as_any_other(tmp_path):
    for folder in ("mine", "others/secret"):
        (tmp_path / folder).mkdir(parents=True)
    rules = PathRules(tmp_path / "mine", tmp_path, (tmp_path / "mine",), beside=tmp_path / "others")
    with pytest.raises(InputError) as caught:
        parse_task("run: x\nworkdir: secret", "t.yaml", paths=rules)
    assert "others" not in str(caught.value)


def test_without_rules_paths_start_at_the_folder_of_the_file(home, monkeypatch):
    assert parse_task("run: x\nworkdir: code", str(home / "task.yaml")).workdir == str(home / "code")
    monkeypatch.chdir(home)
    assert parse_task("run: x\nworkdir: code", "task.yaml").workdir == str(home / "code")


def test_mounts_are_filled_in_on_both_sides(home):
    task = parse("envs: {SIZE: 13b, DATA: data}\nfile_mounts: {'/ckpt/${SIZE}': ~/$DATA, ./f: file.txt}", home)
    assert task.file_mounts == (
        Mount("/ckpt/13b", str(home / "data")),
        Mount("./f", str(home / "file.txt")),
    )


def test_a_local_source_may_be_written_as_a_mapping(home):
    task = parse("file_mounts: {/data: {source: [data]}}", home)
    assert task.file_mounts == (Mount("/data", str(home / "data")),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workdir: none", "workdir '{home}/none' is not there"),
        ("workdir: file.txt", "workdir '{home}/file.txt' is a file"),
        ("workdir: ~bob/x", "workdir '~bob/x' is in another user's home"),
        ("workdir: {{url: 'https://x/y.git'}}", "workdir must be a folder, found a mapping"),
        ("workdir: https://x/y.git", "workdir is in a cloud ('https://x/y.git')"),
        ('workdir: "a\\0b"', "workdir holds a NUL character or is not UTF-8"),
        ("workdir: $NOWHERE", "workdir '{home}/$NOWHERE' is not there"),
        ("workdir: {long}", "workdir '{home}/" + "a" * 20),
        ("file_mounts: {{/d: s3://bucket}}", "file_mounts./d is in a cloud ('s3://bucket')"),
        ("file_mounts: {{/d: none}}", "file_mounts./d '{home}/none' is not there"),
        (
            "file_mounts: {{/d: {{name: b}}}}",
            "file_mounts./d has no source: buckets and volumes cannot be made",
        ),
        (
            "file_mounts: {{/d: {{name: b, source: data, mode: COPY}}}}",
            "file_mounts./d asks for a bucket or a volume (name, mode), which cannot be made here",
        ),
        ("file_mounts: {{/d: {{source: [a, b]}}}}", "file_mounts./d has 2 sources"),
        (
            "file_mounts: {{/a/../../etc: data}}",
            "file_mounts./a/../../etc: '/a/../../etc' is no place to mount",
        ),
        ("file_mounts: {{/: data}}", "file_mounts./: '/' is no place to mount"),
        ("file_mounts: [data]", "file_mounts must be a mapping, found a list"),
        (
            "envs: {{A: d}}\nfile_mounts: {{/$A: data, /d: data}}",
            "file_mounts./d: something is mounted at '/d'",
        ),
    ],
)
def test_a_bad_path_is_refused(home, text, said):
    (found,) = problems_of(text.format(home=home, long="a" * 350), home)
    assert found.startswith(said.format(home=home))


def test_a_name_that_is_not_in_envs_is_the_fix(home):
    with pytest.raises(InputError, match="NOWHERE is not in envs"):
        parse("workdir: $NOWHERE", home)


def test_what_cannot_be_read_is_refused(home, monkeypatch):
    (home / "data").chmod(0)
    monkeypatch.setattr(os, "access", lambda path, mode: bool(os.stat(path).st_mode & 0o400))  # also for root
    assert problems_of("workdir: data", home)[0].endswith("cannot be read")


def test_what_cannot_be_read_is_refused_whoever_finds_out(home):
    said = problems_of("workdir: data", home, probe=lambda path: (PathKind.UNREADABLE, path))
    assert said == [f"workdir '{home}/data' cannot be read"]


@pytest.mark.parametrize("written", ["../other", "/etc", "link", "code/../../other", "~/../other"])
def test_a_path_outside_of_what_is_allowed_is_refused_links_followed(home, written):
    (home / "link").symlink_to(home.parent / "other")
    (found,) = problems_of(f"workdir: {written}", home, roots=(home,))
    assert found.endswith("lies outside of what you may use")


def test_a_link_within_what_is_allowed_is_kept_as_what_it_points_to(home):
    (home / "link").symlink_to(home / "code")
    assert parse("workdir: link", home, roots=(home,)).workdir == str(home / "code")
    assert parse("workdir: link", home).workdir == str(home / "link")


def test_relative_paths_and_home_can_be_refused():
    with pytest.raises(InputError) as caught:
        parse_task("run: x\nworkdir: a\nfile_mounts: {/d: ~/x}", paths=PathRules())
    assert [problem.message for problem in caught.value.problems] == [
        "workdir 'a' is relative",
        "file_mounts./d '~/x' begins with ~, which is not known here",
    ]


def test_paths_can_be_taken_on_trust():
    task = parse_task("run: x\nworkdir: /not/there\nfile_mounts: {/d: /nor/this}", check_paths=False)
    assert (task.workdir, task.file_mounts) == ("/not/there", (Mount("/d", "/nor/this"),))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("file_mounts: {/data: data}", "/data"),
        ("file_mounts: {~/data: data}", "~/data"),
        ("setup: cd ~/sky_workdir", "~/sky_workdir"),
    ],
)
def test_a_machine_without_private_mounts_refuses_targets_outside_of_the_workdir(home, text, target):
    (found,) = problems_of(text, home, no_mounts=lambda: "unshare: Operation not permitted")
    assert found.startswith(f"{target} cannot be mounted: this machine gives jobs no private mounts (unshare")
    assert parse(text, home, no_mounts=lambda: "").run == "x"


def test_targets_in_the_workdir_and_tasks_without_mounts_need_no_private_mounts(home):
    def never() -> str:
        raise AssertionError

    assert parse("file_mounts: {in/data: data}", home, no_mounts=never).file_mounts
    assert parse("workdir: code", home, no_mounts=never).workdir


def test_a_whole_home_is_no_place_to_mount(home):
    (found,) = problems_of("file_mounts: {~: data}", home)
    assert "a whole home is no place to mount" in found


def test_skyignore_is_noted_for_nothing_is_copied(home):
    (home / "code" / ".skyignore").write_text("*.bin\n")
    assert any(".skyignore is not used" in note for note in parse("workdir: code", home).notes)
    assert not any(".skyignore" in note for note in parse("workdir: data", home).notes)
