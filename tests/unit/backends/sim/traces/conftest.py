"""Small files of every format, written where a test wants them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from batuta.spec.problem import InputError, Problem

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of this name and tells where."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def problems_of() -> Callable[[Callable[[], object]], tuple[Problem, ...]]:
    """All problems of an act that has to fail."""

    def collect(act: Callable[[], object]) -> tuple[Problem, ...]:
        with pytest.raises(InputError) as caught:
            act()
        return caught.value.problems

    return collect
