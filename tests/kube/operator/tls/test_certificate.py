"""Operators of a release share one certificate, which their authority vouches for; it is renewed while they run."""

import http.client
import ssl
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube.tls.authority import SERVER_DAYS, Certificates, KeyPair, up_to_date, utc_now
from tests.kube.operator.tls.conftest import NAME, Shared, shown_by
from tests.support.certificates import client_context
from tests.support.chart import tls_objects_of
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant, refused

FAST_LEASE = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}


def openssl(operator: OperatorProcess, *words: str) -> str:
    command = [
        "openssl",
        "s_client",
        "-connect",
        f"127.0.0.1:{operator.port}",
        "-brief",
        "-verify_return_error",
        *words,
    ]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=30)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [NAME, f"{NAME}.cluster.local", RELEASE, "localhost"])
def test_openssl_verifies_it_by_the_published_authority(operator: OperatorProcess, shared: Shared, name: str):
    said = openssl(operator, "-CAfile", str(shared.ca_file()), "-verify_hostname", name)
    assert "Verification: OK" in said
    assert "Protocol version: TLSv1.3" in said


def test_no_other_authority_and_no_other_name_will_do(operator: OperatorProcess, shared: Shared):
    assert "hostname mismatch" in openssl(operator, "-CAfile", str(shared.ca_file()), "-verify_hostname", "example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        shown_by("127.0.0.1", operator.port, client_context("another"))


def test_old_versions_of_tls_are_refused(operator: OperatorProcess):
    assert "Verification: OK" not in openssl(operator, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")


def test_a_request_in_clear_is_not_answered(operator: OperatorProcess):
    connection = http.client.HTTPConnection("127.0.0.1", operator.port, timeout=5)
    connection.request("GET", "/readyz")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        connection.getresponse()
    connection.close()
    assert operator.metrics()


def test_a_certificate_that_is_due_is_renewed_and_shown_without_a_restart(operator: OperatorProcess, shared: Shared):
    """Given a connection that is open, when a third of the certificate's life is left, then both go on."""
    before = shared.data()
    authority = KeyPair(before["ca.crt"], before["ca.key"])
    names = [NAME, f"{NAME}.cluster.local", f"{RELEASE}.{NAMESPACE}", RELEASE, "localhost", "127.0.0.1", "::1"]
    long_ago = utc_now() - timedelta(days=SERVER_DAYS * 0.7)
    due = up_to_date(Certificates(authority, KeyPair(b"", b"")), names, long_ago).server
    connection = http.client.HTTPSConnection("localhost", operator.port, timeout=5, context=shared.trust())
    connection.request("GET", "/readyz")
    assert connection.getresponse().read() == b"ok\n"

    shared.write(before | {"tls.crt": due.certificate, "tls.key": due.key})
    wait_until(lambda: shared.data()["tls.crt"] not in (due.certificate, before["tls.crt"]), "it to be renewed")
    renewed = shared.data()
    wait_until(lambda: shown_by("127.0.0.1", operator.port, shared.trust()) == renewed["tls.crt"], "it to be shown")
    assert renewed["ca.crt"] == before["ca.crt"]
    operator.check()
    connection.request("GET", "/readyz")
    assert connection.getresponse().read() == b"ok\n"
    connection.close()


@pytest.mark.parametrize(
    "spoilt", [None, {"tls.crt": b"nonsense"}, {"ca.crt": b"", "ca.key": b"", "tls.crt": b"", "tls.key": b""}]
)
def test_a_secret_that_was_emptied_or_spoilt_gets_another_authority_that_is_published(
    operator: OperatorProcess, shared: Shared, spoilt: dict[str, bytes] | None
):
    """The way to throw away a key that others have got."""
    before = shared.data()["ca.crt"]
    shared.write(spoilt)
    wait_until(lambda: shared.data().get("ca.crt", b"") not in (b"", before), "another authority")
    wait_until(lambda: shared.ca_file().read_bytes() == shared.data()["ca.crt"], "it to be published")
    wait_until(lambda: shown_by("127.0.0.1", operator.port) == shared.data()["tls.crt"], "it to be shown")
    assert shown_by("127.0.0.1", operator.port, shared.trust())


def test_an_upgrade_leaves_the_certificate_as_it_is(operator: OperatorProcess, shared: Shared):
    before = shared.data()
    shared.cluster.apply(tls_objects_of({"fullnameOverride": RELEASE}, NAMESPACE))
    assert shared.data() == before
    assert shared.ca_file().read_bytes() == before["ca.crt"]


def test_a_port_without_a_shared_certificate_is_not_ready_and_says_why(prepared: ControlPlane, tmp_path: Path):
    """Given an operator of which the objects are of an older version, then it lives, and no requests are sent to it."""
    lost: dict[str, Any] = {
        "api": {"tls": {"mode": "auto", "secret": "not-there", "names": ["localhost"], "refreshSeconds": 1}}
    }
    with OperatorProcess(prepared, tmp_path, elect=True, identity="lost", **lost) as operator:

        def ready() -> tuple[int, str]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the kubelet does
            connection = http.client.HTTPSConnection("127.0.0.1", operator.port, timeout=5, context=context)
            try:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            except OSError:
                return 0, ""
            finally:
                connection.close()

        wait_until(lambda: ready()[0] == 503 and "batuta install --apply" in ready()[1], "it to say so")
        operator.check()


def test_two_operators_share_one_certificate(prepared: ControlPlane, shared: Shared, tmp_path: Path):
    """Given an empty Secret, when two operators start at once, then the first one's certificate is that of both."""
    account, mark = grant(prepared), prepared.requests.mark()
    shared.write(None)

    def make(identity: str, host: str, port: int | None = None) -> OperatorProcess:
        lease: dict[str, Any] = {"leaseName": f"{RELEASE}-operator", "leaderElection": FAST_LEASE}
        api = {"listen": host} | ({} if port is None else {"port": port})
        return OperatorProcess(
            prepared, tmp_path, kubeconfig=account, elect=True, identity=identity, tls=True, api=api, **lease
        )

    def shown() -> set[bytes]:
        try:
            return {
                shown_by("127.0.0.1", first.port, shared.trust()),
                shown_by("127.0.0.2", second.port, shared.trust()),
            }
        except OSError:
            return set()

    with make("first", "127.0.0.1") as first, make("second", "127.0.0.2") as second:
        wait_until(lambda: shown() == {shared.data().get("tls.crt")}, "both to show what is in the Secret")
        # when its data is lost while both run, then they agree again
        before = shared.data()["ca.crt"]
        shared.write(None)
        wait_until(lambda: shared.data().get("ca.crt", before) != before, "another authority")
        wait_until(lambda: shown() == {shared.data().get("tls.crt")}, "both to show what is in the Secret")
        assert len(shown()) == 1
    assert refused(prepared, mark) == []
