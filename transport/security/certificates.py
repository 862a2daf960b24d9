"""A certificate and its key, checked before they are used: they belong together and are in date.
And the names in a certificate that a peer showed."""

import ssl
from typing import Any, NamedTuple

from ...base.errors import ConfigError
from .secret_files import read_file

_TRIAL_NAME = "trial"


class KeyPair(NamedTuple):
    """A certificate chain and its private key in PEM, and when the certificate ends (Unix time)."""

    cert: bytes
    key: bytes
    not_after: float


def load_key_pair(context: ssl.SSLContext, cert: str, key: str, section: str) -> KeyPair:
    """Load two PEM files into a context. ConfigError, naming the setting, if they cannot be used.

    `section` leads the names of the settings: "tls" for tls.cert and tls.key.
    """
    cert_key, key_key = f"{section}.cert", f"{section}.key"
    pair = read_file(cert, cert_key), read_file(key, key_key)
    if b"-----BEGIN CERTIFICATE-----" not in pair[0]:
        raise ConfigError(f"{cert_key}: {cert} holds no certificate in PEM", key=cert_key)
    if b"PRIVATE KEY-----" not in pair[1]:
        raise ConfigError(f"{key_key}: {key} holds no private key in PEM", key=key_key)
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(cert, key, password=password)
    except (ssl.SSLError, OSError) as error:
        if asked:
            text = f"{key} is encrypted: give a key without a passphrase"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            text = f"{key} does not belong to the certificate in {cert}"
        else:
            text = f"{cert} and {key} cannot be used: {getattr(error, 'reason', None) or error}"
        raise ConfigError(f"{key_key}: {text}", key=key_key) from None
    return KeyPair(*pair, _end_of(cert, key, cert_key))


def client_context(ca: str | None, setting: str) -> ssl.SSLContext:
    """For connections that we open, to whom the authorities of a file vouch for, or else the
    system's. ConfigError, naming the setting, if the file holds none.

    Every Python checks alike: create_default_context of 3.13 also refuses certificates without
    the key identifiers of RFC 5280, as many private authorities issue them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs()
    else:
        load_roots(context, ca, setting)
    return context


def load_roots(context: ssl.SSLContext, path: str, key: str) -> bytes:
    """Load a PEM file of certificate authorities into a context. ConfigError if it holds none."""
    data = read_file(path, key)
    try:
        context.load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(f"{key}: {path} holds no certificate authority in PEM", key=key) from None
    return data


def _end_of(cert: str, key: str, setting: str) -> float:
    """When a certificate ends. ConfigError if a client would not accept it by its dates.

    The standard library shows a certificate's dates only to a peer that verified it, so
    one is held in memory; that also shows that the pair works.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it is trusted for itself
    client.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=_TRIAL_NAME)
    try:
        for _ in range(4):
            for end in (ours, theirs):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{setting}: {cert} is not valid: {error.verify_message}", key=setting
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"{setting}: {cert} is not valid: {error.reason}", key=setting) from None
    found = ours.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def certificate_names(shown: Any) -> tuple[str, ...]:
    """The names in the certificate that a peer showed, as ssl gives it (None or empty if it showed
    none): its common name, then the others."""
    if not shown:
        return ()
    parts = (pair for part in shown.get("subject", ()) for pair in part)
    names = [value for key, value in parts if key == "commonName"]
    names += [value for _, value in shown.get("subjectAltName", ())]
    return tuple(dict.fromkeys(names))
