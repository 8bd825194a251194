"""The operator's port over TLS: questions go on to the leader alone, and connections that ask nothing keep nothing."""

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kube.operator.tls.conftest import Shared
from tests.support.certificates import server_context
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant
from tests.support.kube.ports import free_ports

FAST_LEASE = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}
CONNECTIONS = 1_200
DESCRIPTORS = 512


@contextmanager
def impostor(host: str, port: int) -> Iterator[list[bytes]]:
    """A server whose certificate has the right names, of another authority; what clients have told it."""
    heard: list[bytes] = []
    listener = socket.create_server((host, port))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with server_context("impostor").wrap_socket(plain, server_side=True) as secured:
                    heard.append(secured.recv(1 << 16))
            except OSError as refusal:
                heard.append(f"refused: {refusal}".encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def test_questions_go_on_to_the_leader_and_to_no_impostor(prepared: ControlPlane, shared: Shared, tmp_path: Path):
    """Given a leader's pod whose address another program has, then it is told nothing; the leader itself answers."""
    account, pods = grant(prepared), f"/api/v1/namespaces/{NAMESPACE}/pods"
    container = {"name": "main", "image": "none"}
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    wait_until(lambda: "default" in {one["metadata"]["name"] for one in prepared.api.items(accounts)}, "an account")
    prepared.api.create(pods, {"metadata": {"name": "first"}, "spec": {"containers": [container]}})

    def run(identity: str, host: str, port: int) -> OperatorProcess:
        config: dict[str, Any] = {
            "leaseName": f"{RELEASE}-operator",
            "leaderElection": FAST_LEASE,
            "api": {"listen": host, "port": port},
        }
        return OperatorProcess(
            prepared, tmp_path, kubeconfig=account, elect=True, identity=identity, tls=True, **config
        )

    def ask(path: str) -> tuple[int, str]:
        asked = urllib.request.Request(f"https://127.0.0.2:{port}{path}", headers={"Authorization": "Bearer secret"})
        try:
            trust = shared.trust()
            trust.check_hostname = False  # no certificate is for 127.0.0.2; its authority is verified
            with urllib.request.urlopen(asked, timeout=10, context=trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def move_to(address: str) -> None:
        prepared.api.patch(f"{pods}/first/status", {"status": {"podIP": address, "podIPs": [{"ip": address}]}})

    (port,) = free_ports(1)
    try:
        with run("first-1", "127.0.0.1", port) as first:
            first.wait_until_leading()
            with run("second-1", "127.0.0.2", port):
                wait_until(lambda: ask("/healthz")[0] == 200, "the other one to answer")
                with impostor("127.0.0.3", port) as heard:
                    move_to("127.0.0.3")
                    wait_until(
                        lambda: "another program answers at its address" in ask("/api/v1/cluster")[1], "a refusal"
                    )
                    assert {told.partition(b":")[0] for told in heard} == {b"refused"}
                move_to("127.0.0.1")
                # The leader asks the cluster about the token, which does not know it.
                wait_until(lambda: ask("/api/v1/cluster")[0] == 401, "the leader's own refusal")
    finally:
        prepared.api.delete(f"{pods}/first")


@pytest.mark.parametrize("shakes_hands", [False, True], ids=["before the handshake", "after it"])
def test_half_open_connections_leave_the_api_answering(
    prepared: ControlPlane, shared: Shared, tmp_path: Path, shakes_hands: bool
):
    """Given an operator with half as many descriptors as there are connections, then it answers, and keeps its own."""
    account = grant(prepared)
    with (
        OperatorProcess(prepared, tmp_path, kubeconfig=account, tls=True, descriptors=DESCRIPTORS) as operator,
        ExitStack() as held,
    ):
        assert operator.program is not None
        folder = Path(f"/proc/{operator.program.pid}/fd")
        trust = shared.trust()
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", operator.port), 5)
            held.enter_context(connection)
            if shakes_hands:
                held.enter_context(trust.wrap_socket(connection, server_hostname="localhost"))
        wait_until(lambda: len(os.listdir(folder)) > 300, "it to hold what it can")
        assert len(os.listdir(folder)) < DESCRIPTORS - 16  # and it keeps some for itself
        for _ in range(5):
            with operator.ask("/readyz") as answer:
                assert answer.read() == b"ok\n"
        operator.check()
        assert "Too many open files" not in operator.log.read_text()
