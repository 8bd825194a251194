"""Jobs of the tests here; whatever a test leaves running ends with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.elastic_runs import ElasticJob


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ElasticJob]:
    own = ElasticJob(tmp_path / "job")
    yield own
    own.clean_up()
