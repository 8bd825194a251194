"""Makes certificates for the operator's API: an authority of its own (CA), and the certificate that servers show.

The authority keeps its key, so that a new certificate of a server is nothing that clients notice. An authority that
is renewed keeps name and key: clients that know the old certificate of it believe in what the new one signs, as long
as theirs holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 90
_CLOCKS_DIFFER_BY: Final = timedelta(hours=1)
_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Batuta operators")])
_SERVER_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Batuta operator")])


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificates:
    """What all operators of a release share."""

    authority: KeyPair
    server: KeyPair


def up_to_date(known: Certificates | None, names: Sequence[str], now: datetime) -> Certificates:
    """Return what is known if it will do, else what has to be made anew of it.

    It does with keys that fit, for these names, and with a third of its life left.
    """
    if known is None or not _is_pair(known.authority):
        authority = _new_authority(ec.generate_private_key(ec.SECP256R1()), now)
        return Certificates(authority, _new_server(authority, names, now))
    authority, server = known.authority, known.server
    if _life_left(authority, now) < 1 / 3:
        authority = _new_authority(_key_of(authority), now)
    if not _is_server(authority, server, names) or _life_left(server, now) < 1 / 3:
        server = _new_server(authority, names, now)
    return known if (authority, server) == (known.authority, known.server) else Certificates(authority, server)


def _new_authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> KeyPair:
    built = _builder(_NAME, _NAME, key, now, AUTHORITY_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _signed(built.add_extension(_usage(signs_certificates=True), critical=True), key, key)


def _new_server(authority: KeyPair, names: Sequence[str], now: datetime) -> KeyPair:
    key, signer = ec.generate_private_key(ec.SECP256R1()), _key_of(authority)
    built = _builder(_SERVER_NAME, _NAME, key, now, SERVER_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_usage(signs_certificates=False), critical=True)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    built = built.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return _signed(built.add_extension(signer_id, critical=False), key, signer)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER_BY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    built: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> KeyPair:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    certificate = built.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return KeyPair(certificate, key.private_bytes(serialization.Encoding.PEM, form, plain))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_of(pair: KeyPair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"a key on an elliptic curve was expected, found {type(key).__name__}")
    return key


def _is_pair(pair: KeyPair) -> bool:
    """Whether both can be read, and belong together."""
    try:
        return x509.load_pem_x509_certificate(pair.certificate).public_key() == _key_of(pair).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _is_server(authority: KeyPair, server: KeyPair, names: Sequence[str]) -> bool:
    """Whether the authority has signed it, for all of the names."""
    if not _is_pair(server):
        return False
    certificate = x509.load_pem_x509_certificate(server.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        given = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return {_general_name(name) for name in names} <= set(given)


def _life_left(pair: KeyPair, now: datetime) -> float:
    """The share of its life that is left: more than 1 where it has not begun, by a clock that is behind."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return (ends - now) / (ends - begins)


def utc_now() -> datetime:
    return datetime.now(UTC)
