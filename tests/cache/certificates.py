"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    """PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates.

    Attributes:
        cert: its own, a PEM file.
    """

    def __init__(self, folder: Path, name: str = "authority"):
        self._folder, self._name, self._key = folder, _name(name), ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(_pem(self._sign(name, self._key, timedelta(days=1), constraint)))

    def pair(self, name: str, lasts: timedelta = timedelta(days=1)) -> Pair:
        """A certificate for 127.0.0.1 and a client of this name; one that lasts a negative time has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.cert.write_bytes(_pem(self._sign(name, key, lasts, names)))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _sign(
        self, name: str, key: ec.EllipticCurvePrivateKey, lasts: timedelta, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        builder = x509.CertificateBuilder(self._name, _name(name), key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=2)).not_valid_after(now + lasts)
        return builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)
