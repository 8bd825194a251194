import os
import stat
from pathlib import Path

import pytest

from batuta.store.errors import StateDirError, StoreFullError
from batuta.store.state_dir import StateDir, default_home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path) -> StateDir:
    home = StateDir(tmp_path / "a" / "home")
    home.prepare()
    return home


def test_where_it_is(monkeypatch, tmp_path):
    assert default_home({"BATUTA_HOME": "/x/y"}) == Path("/x/y")
    assert default_home({}) == Path("~/.batuta").expanduser()
    monkeypatch.chdir(tmp_path)
    assert default_home({"BATUTA_HOME": "here"}) == tmp_path / "here"
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "there"))
    assert StateDir().path == tmp_path / "there"
    assert StateDir("here").path == tmp_path / "here"


def test_it_is_for_its_owners_eyes_only(home):
    previous = os.umask(0o022)
    try:
        assert mode(home.path) == mode(home.jobs) == 0o700
    finally:
        os.umask(previous)
    home.prepare()
    assert home.journal == home.path / "journal.db"


def test_an_empty_folder_is_taken_over(tmp_path):
    tmp_path.chmod(0o755)
    StateDir(tmp_path).prepare()
    assert mode(tmp_path) == 0o700


def test_a_folder_with_something_in_it_that_others_can_read_is_not_touched(tmp_path):
    (tmp_path / "project").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(StateDirError, match=r"open to others \(mode 0755\): chmod 700 "):
        StateDir(tmp_path).prepare()
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    StateDir(tmp_path).prepare()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(StateDirError, match="is not a directory"):
        StateDir(tmp_path / "x").prepare()
    with pytest.raises(StateDirError, match="cannot make"):
        StateDir(tmp_path / "x" / "y").prepare()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateDirError, match="cannot use"):
        StateDir(tmp_path / "dangling").prepare()


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StateDirError, match="belongs to another user"):
        StateDir(tmp_path).prepare()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StateDirError, match="not writable"):
        StateDir(tmp_path).prepare()
    tmp_path.chmod(0o700)


def test_room(home):
    home.check_space(1)
    with pytest.raises(StoreFullError, match=r"has \d+ MiB free, at least \d+ MiB are needed"):
        home.check_space(1 << 60)
    with pytest.raises(StoreFullError):
        home.prepare(1 << 60)


def test_secrets(home):
    assert home.read_secret() is None
    previous = os.umask(0)
    try:
        path = home.write_secret("batuta_abc")
    finally:
        os.umask(previous)
    assert path == home.path / "token"
    assert mode(path) == 0o600
    assert home.read_secret() == "batuta_abc"
    home.write_secret("batuta_new")
    assert home.read_secret() == "batuta_new"
    assert sorted(os.listdir(home.path)) == ["jobs", "token"]
    path.chmod(0o640)
    with pytest.raises(StateDirError, match=r"open to others \(mode 0640\): chmod 600"):
        home.read_secret()
    for name in ("../x", "", "A B", ".x"):
        with pytest.raises(StateDirError, match="name of a secret"):
            home.write_secret("x", name)


def test_a_secret_is_never_written_through_somebody_elses_link(home, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (home.path / "token").symlink_to(victim)
    (home.path / f".token.{os.getpid()}").symlink_to(victim)
    home.write_secret("secret")
    assert victim.read_text() == "precious"
    assert home.read_secret() == "secret"


def test_secrets_without_a_folder(tmp_path):
    with pytest.raises(StateDirError, match="cannot write"):
        StateDir(tmp_path / "nowhere").write_secret("x")
