"""Ports, node addresses and host lists."""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from batuta.backends.local import addresses
from batuta.backends.local.addresses import (
    NoPortFree,
    PortReservations,
    default_ports,
    is_free,
    node_address,
)
from batuta.backends.local.replica_plan import write_hosts
from tests.support.worlds import at


def test_no_port_is_given_twice():
    reservations = PortReservations()
    given: list[int] = []

    def take(owner: str) -> None:
        given.extend(reservations.reserve(f"{owner}-{number}") for number in range(20))

    threads = [threading.Thread(target=take, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == len(given) == 80
    assert all(port in default_ports() for port in given)


def test_port_in_use_is_not_given():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(NoPortFree):
            PortReservations(range(port, port + 1)).reserve("job")
    assert is_free(port)


def test_released_and_claimed_ports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "is_free", lambda _: True)
    reservations = PortReservations(range(30_000, 30_003), seed=1)
    reservations.claim("old", 30_001)
    assert sorted(reservations.reserve(owner) for owner in ("new", "newer")) == [30_000, 30_002]
    with pytest.raises(NoPortFree):
        reservations.reserve("third")
    reservations.release("old")
    reservations.release("unknown")
    assert reservations.reserve("third") == 30_001


def test_reserved_port_can_be_listened_at_without_options():
    """Programs bind as they like, also without SO_REUSEADDR."""
    port = PortReservations().reserve("job")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32768\t60999\n", range(20_000, 32_768)),
        ("1024\t65535\n", range(20_000, 65_536)),
        ("15000\t40000\n", range(40_001, 65_536)),
        ("nonsense", range(20_000, 49_152)),
    ],
)
def test_ports_lie_outside_of_the_range_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: range
):
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(addresses, "_EPHEMERAL", tmp_path / "range")
    assert default_ports() == expected


def test_nodes_have_addresses_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "_has_many_loopbacks", lambda: True)
    assert [node_address(index) for index in (0, 1, 253, 254)] == [
        "127.66.0.1",
        "127.66.0.2",
        "127.66.0.254",
        "127.66.1.1",
    ]
    assert len({node_address(index) for index in range(2000)}) == 2000
    monkeypatch.setattr(addresses, "_has_many_loopbacks", lambda: False)
    assert [node_address(index) for index in (0, 1)] == ["127.0.0.1", "127.0.0.1"]
    with pytest.raises(ValueError, match="node index"):
        node_address(-1)


def test_server_on_all_addresses_is_reached_at_a_node():
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with socket.create_connection((node_address(7), listener.getsockname()[1]), timeout=10):
            pass


def test_host_files_have_the_slots_of_all_nodes(tmp_path: Path):
    env = write_hosts(tmp_path, at("n0:01 n1:01 n2:0"))
    assert Path(env["BATUTA_HOSTFILE"]).read_text() == "localhost slots=5\n"
    assert Path(env["HYDRA_HOST_FILE"]).read_text() == "localhost:5\n"
    assert env["BATUTA_NUM_PROCS"] == "5"
    named = {value for value in env.values() if value.startswith("/")}
    assert {str(path) for path in tmp_path.iterdir()} == named


def test_discovery_script_prints_the_hosts_of_now(tmp_path: Path):
    control = tmp_path / "it's here"
    control.mkdir()
    script = write_hosts(control, at("n0:01"))["BATUTA_DISCOVERY_SCRIPT"]

    def discovered() -> str:
        return subprocess.run([script], check=True, capture_output=True, text=True, cwd="/").stdout

    assert discovered() == "localhost:2\n"
    write_hosts(control, at("n0:01 n1:01"))
    assert discovered() == "localhost:4\n"
