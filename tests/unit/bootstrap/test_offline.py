"""A journal is read where it is: in a state directory, or where the operator's environment says."""

from pathlib import Path

import pytest

from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE
from batuta.bootstrap.offline import stored_world
from batuta.client.errors import ClientError
from batuta.core import event as ev
from batuta.core.cluster import Node
from tests.support.store_places import Place, place, server, session_server

__all__ = ["place", "server", "session_server"]


def test_a_journal_is_read_while_somebody_writes_it(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not place.is_file:
        monkeypatch.setenv(JOURNAL_URL_VARIABLE, place.address)
    with place.open() as store:
        store.journal.append(ev.NodeAdded(1.0, Node("n0", 8)))
        store.journal.commit()
        world = stored_world(tmp_path)
    assert list(world.nodes.index) == ["n0"]


def test_a_directory_without_a_journal_is_told(tmp_path: Path):
    with pytest.raises(ClientError, match="has no journal"):
        stored_world(tmp_path)
