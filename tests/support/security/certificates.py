"""Certificates made while a test runs: an authority, and what it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A certificate authority whose files are in a folder. `ca` is the path of its certificate.

    Without `strict` its certificates lack what RFC 5280 also demands, as older tools make them:
    identifiers of keys, and what the authority's key may be used for.
    """

    def __init__(self, folder: Path, name: str = "authority", *, strict: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._strict = strict
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        cert = self._sign(self._name, self._key, _DAY, authority=True)
        self.ca = str(folder / f"{name}.pem")
        Path(self.ca).write_bytes(cert)

    def issue(
        self,
        name: str,
        *,
        days: float = 1,
        hosts: tuple[str, ...] = ("localhost",),
        addresses: tuple[str, ...] = ("127.0.0.1",),
        file: str | None = None,
        passphrase: bytes | None = None,
    ) -> tuple[str, str]:
        """The paths of a certificate and its key; one that has ended if `days` is negative.

        `file` names the pair's files; given once more, they are replaced.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [*map(x509.DNSName, hosts)]
        names += [x509.IPAddress(ipaddress.ip_address(text)) for text in addresses]
        cert = self._sign(_named(name), key, days * _DAY, names=names)
        stem = self._folder / (file or name)
        paths = stem.with_suffix(".crt"), stem.with_suffix(".key")
        for path, data in zip(paths, (cert, _private(key, passphrase)), strict=True):
            new = path.with_suffix(".new")
            new.write_bytes(data)
            new.chmod(0o600)
            new.replace(path)
        return str(paths[0]), str(paths[1])

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lifetime: datetime.timedelta,
        *,
        names: list[x509.GeneralName] | None = None,
        authority: bool = False,
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        first, last = sorted((now - _DAY / 2, now + lifetime))
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(first)
            .not_valid_after(last)
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
        )
        if self._strict and authority:
            own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            builder = builder.add_extension(own, critical=False)
            builder = builder.add_extension(_SIGNS, critical=True)
        elif self._strict:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _private(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None) -> bytes:
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        lock = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
