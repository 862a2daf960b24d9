"""Settings of secrecy, as sections of a command's configuration."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ...process.settings import bad_setting, option


@dataclass(frozen=True, kw_only=True)
class ServerTlsConfig:
    """What a listener shows, and whom it lets in. ConfigError if only half of it is given."""

    GROUP: ClassVar[str] = "Security"

    cert: str | None = option(
        None, "Certificate chain (PEM) of the listeners; enables TLS.", "--tls-cert", short=True
    )
    key: str | None = option(None, "Its private key (PEM, no passphrase).", "--tls-key", short=True)
    client_ca: str | None = option(
        None,
        "Only clients with a certificate of these authorities (PEM) are let in: mTLS.",
        "--tls-client-ca",
    )

    def __post_init__(self) -> None:
        _require_pair("tls", self.cert, self.key)
        if self.client_ca is not None and self.cert is None:
            raise bad_setting("tls.client_ca", "needs tls.cert")

    @property
    def on(self) -> bool:
        return self.cert is not None


@dataclass(frozen=True, kw_only=True)
class WorkerTlsConfig:
    """How engines at grpcs:// addresses are believed, and what they are shown."""

    GROUP: ClassVar[str] = "Security"

    ca: str | None = option(
        None,
        "Authorities (PEM) of the engines at grpcs:// addresses. Not given: the system's.",
        "--worker-tls-ca",
    )
    cert: str | None = option(
        None, "Certificate chain (PEM) to show to engines.", "--worker-tls-cert"
    )
    key: str | None = option(None, "Its private key (PEM).", "--worker-tls-key")
    name: str | None = option(
        None,
        "Name that the engines' certificates carry. Not given: each one's host.",
        "--worker-tls-name",
    )

    def __post_init__(self) -> None:
        _require_pair("worker_tls", self.cert, self.key)


@dataclass(frozen=True, kw_only=True)
class NatsAuthConfig:
    """How we and the NATS server believe each other, beside what its URL says."""

    GROUP: ClassVar[str] = "KV events"

    ca: str | None = option(
        None, "Authorities (PEM) of the server at a tls:// address.", "--nats-ca"
    )
    cert: str | None = option(None, "Certificate chain (PEM) to show to it.", "--nats-cert")
    key: str | None = option(None, "Its private key (PEM).", "--nats-key")
    creds: str | None = option(None, "Credentials file: a user's JWT and seed.", "--nats-creds")
    nkey_seed: str | None = option(None, "File with an nkey's seed.", "--nats-nkey-seed")
    password_file: str | None = option(
        None, "File with the password of the user in the URL.", "--nats-password-file"
    )
    token_file: str | None = option(None, "File with an access token.", "--nats-token-file")

    def __post_init__(self) -> None:
        _require_pair("nats_auth", self.cert, self.key)
        ways = ("creds", "nkey_seed", "password_file", "token_file")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) > 1:
            raise bad_setting(f"nats_auth.{given[1]}", f"cannot be had beside {given[0]}")

    def check_has_server(self, url: str | None) -> None:
        """ConfigError if anything is given without the address of a server to show it to."""
        for field in fields(self):
            if url is None and getattr(self, field.name) is not None:
                raise bad_setting(f"nats_auth.{field.name}", "needs nats, the server's address")

    @property
    def tls(self) -> bool:
        return self.ca is not None or self.cert is not None


def _require_pair(section: str, cert: str | None, key: str | None) -> None:
    if (cert is None) != (key is None):
        given, missing = ("cert", "key") if key is None else ("key", "cert")
        raise bad_setting(f"{section}.{given}", f"needs {section}.{missing}")
