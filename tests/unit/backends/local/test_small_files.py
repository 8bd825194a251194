"""Small files are read and written without waiting for anybody, whatever is in their place."""

import os
from pathlib import Path

import pytest

from batuta.backends.local.files import empty_trash, read_json, read_small, write_json, write_small


def test_what_was_written_is_read_and_only_by_its_owner(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": [1, None]})
    assert read_json(tmp_path / "a") == {"b": [1, None]}
    assert oct((tmp_path / "a").stat().st_mode)[-3:] == "600"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        read_small(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        write_small(tmp_path / "pipe", b"x")
    assert read_json(tmp_path / "pipe") is None


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    write_small(tmp_path / "a", b"12345")
    assert read_small(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="at most 4 bytes"):
        read_small(tmp_path / "a", 4)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_what_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    write_small(tmp_path / "a", content)
    assert read_json(tmp_path / "a") is None


def test_where_nothing_is_there_is_nothing(tmp_path: Path) -> None:
    assert read_json(tmp_path / "absent") is None
    assert read_json(tmp_path) is None


def test_trash_is_emptied_however_deep_it_is_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    """Folders of 1,000 levels ended the removal of all that came after them, and took a descriptor for each level."""
    kept = tmp_path / "kept"
    (kept / "folder").mkdir(parents=True)
    (kept / "folder" / "file").touch()
    trash = tmp_path / "trash"
    trash.mkdir()
    within = os.open(trash, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=within)
        deeper = os.open("d", os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = deeper
    os.symlink(kept, "link", dir_fd=within)
    os.symlink(kept / "folder" / "file", "file-link", dir_fd=within)
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=within))
    os.close(within)
    (trash / "top-link").symlink_to(kept)
    os.mkfifo(trash / "pipe")
    empty_trash(trash)
    assert list(trash.iterdir()) == []
    assert (kept / "folder" / "file").exists()
