"""Certificates are made once, renewed in time, and made anew when they are spoilt."""

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from batuta.backends.kube.tls.authority import AUTHORITY_DAYS, SERVER_DAYS, Certificates, KeyPair, up_to_date

NAMES = ("batuta.system.svc", "localhost", "127.0.0.1")
NOW = datetime.now(UTC)


def later(days: float) -> datetime:
    return NOW + timedelta(days=days)


def openssl_says(folder: Path, made: Certificates, *words: str, authority: KeyPair | None = None) -> str:
    """What openssl thinks of the server's certificate."""
    (folder / "ca.crt").write_bytes((authority or made.authority).certificate)
    (folder / "tls.crt").write_bytes(made.server.certificate)
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt", *words, "tls.crt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_openssl_believes_it_for_its_names_alone(tmp_path: Path):
    made = up_to_date(None, NAMES, NOW)
    assert "tls.crt: OK" in openssl_says(tmp_path, made, "-verify_hostname", "batuta.system.svc")
    assert "tls.crt: OK" in openssl_says(tmp_path, made, "-verify_ip", "127.0.0.1")
    assert "hostname mismatch" in openssl_says(tmp_path, made, "-verify_hostname", "other.system.svc")
    other = up_to_date(None, NAMES, NOW).authority
    assert "error" in openssl_says(tmp_path, made, authority=other)


def test_what_will_do_stays_as_it_is():
    made = up_to_date(None, NAMES, NOW)
    assert up_to_date(made, NAMES, later(SERVER_DAYS * 0.6)) is made
    assert up_to_date(made, NAMES[:1], NOW) is made


def test_with_a_third_of_its_life_left_a_certificate_is_renewed_by_the_same_authority(tmp_path: Path):
    made, at = up_to_date(None, NAMES, NOW), later(SERVER_DAYS * 0.7)
    renewed = up_to_date(made, NAMES, at)
    assert renewed.authority == made.authority
    assert renewed.server != made.server
    assert "tls.crt: OK" in openssl_says(tmp_path, renewed, "-attime", str(int(at.timestamp())))


def test_clients_of_a_renewed_authority_may_know_the_old_one_or_the_new_one(tmp_path: Path):
    made = up_to_date(None, NAMES, NOW)
    at = later(AUTHORITY_DAYS * 0.7)
    renewed = up_to_date(made, NAMES, at)
    assert renewed.authority.certificate != made.authority.certificate
    moment = ("-attime", str(int(at.timestamp())))
    assert "tls.crt: OK" in openssl_says(tmp_path, renewed, *moment)
    assert "tls.crt: OK" in openssl_says(tmp_path, renewed, *moment, authority=made.authority)


def test_another_name_takes_another_certificate(tmp_path: Path):
    made = up_to_date(None, NAMES, NOW)
    renamed = up_to_date(made, (*NAMES, "gpus.system.svc"), NOW)
    assert renamed.authority == made.authority
    assert "tls.crt: OK" in openssl_says(tmp_path, renamed, "-verify_hostname", "gpus.system.svc")


def test_a_third_party_is_told_no_key():
    assert "PRIVATE" not in repr(up_to_date(None, NAMES, NOW))


OTHER = up_to_date(None, NAMES, NOW)


@pytest.mark.parametrize(
    ("spoil", "keeps_authority"),
    [
        (lambda one: replace(one, authority=KeyPair(b"", b"")), False),
        (lambda one: replace(one, authority=KeyPair(one.authority.certificate, OTHER.authority.key)), False),
        (lambda one: replace(one, server=KeyPair(b"nonsense", b"nonsense")), True),
        (lambda one: replace(one, server=KeyPair(one.server.certificate, OTHER.server.key)), True),
        (lambda one: replace(one, server=OTHER.server), True),
        (lambda one: replace(one, server=one.authority), True),
    ],
)
def test_what_is_spoilt_is_made_anew(spoil, keeps_authority: bool, tmp_path: Path):
    made = up_to_date(None, NAMES, NOW)
    again = up_to_date(spoil(made), NAMES, NOW)
    assert (again.authority == made.authority) is keeps_authority
    assert "tls.crt: OK" in openssl_says(tmp_path, again)


@pytest.mark.parametrize("days", [AUTHORITY_DAYS + 1, -7])
def test_no_clock_takes_the_key_from_an_authority(days: float):
    made = up_to_date(None, NAMES, NOW)
    assert up_to_date(made, NAMES, later(days)).authority.key == made.authority.key
