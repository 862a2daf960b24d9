"""How to reach etcd: addresses, credentials, time limits; from Dynamo's environment names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...base.urls import joined, redact_url
from ...process.settings import bad_setting
from ...transport.security import read_file
from .store import LEASE_TTL_S

DEFAULT_ENDPOINTS = ("http://localhost:2379",)
DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """All settings of an etcd client. ConfigError, naming the variable, if one cannot be used."""

    endpoints: tuple[str, ...] = DEFAULT_ENDPOINTS
    """members of one cluster: http://HOST:PORT, https://HOST:PORT or HOST:PORT"""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    """authorities that the servers are believed by, as a path of a PEM file or its text"""
    cert: str | None = None
    """certificate to show, likewise"""
    key: str | None = field(default=None, repr=False)
    """its private key, likewise"""
    lease_ttl_s: float = LEASE_TTL_S
    timeout_s: float = 5.0
    """the longest one call may take, attempts and waits together"""
    startup_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise bad_setting("ETCD_ENDPOINTS", "names no server")
        for endpoint in self.endpoints:
            scheme, _ = split_endpoint(endpoint)
            if scheme == "http" and self.tls:
                text = f"{redact_url(endpoint)} is http://, but certificates are given for https://"
                raise bad_setting("ETCD_ENDPOINTS", text)
        if (self.username is None) != (self.password is None):
            given = "USERNAME" if self.password is None else "PASSWORD"
            missing = "PASSWORD" if self.password is None else "USERNAME"
            raise bad_setting(f"ETCD_AUTH_{given}", f"needs ETCD_AUTH_{missing}")
        if (self.cert is None) != (self.key is None):
            given, missing = ("CERT", "KEY") if self.key is None else ("KEY", "CERT")
            raise bad_setting(f"ETCD_AUTH_CLIENT_{given}", f"needs ETCD_AUTH_CLIENT_{missing}")

    @property
    def tls(self) -> bool:
        """Whether certificates are given: an endpoint without a scheme is https:// then."""
        return self.ca is not None or self.cert is not None

    def address(self, endpoint: str) -> tuple[bool, str]:
        """(over TLS, HOST:PORT) of one of the endpoints."""
        scheme, address = split_endpoint(endpoint)
        return scheme == "https" or (not scheme and self.tls), address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "EtcdConfig":
        """From ETCD_ENDPOINTS (with commas), ETCD_AUTH_* and ETCD_LEASE_TTL (seconds)."""
        given = os.environ if environ is None else environ

        def text(name: str) -> str | None:
            return given.get(name) or None

        endpoints = tuple(part.strip() for part in given.get("ETCD_ENDPOINTS", "").split(","))
        return cls(
            endpoints=tuple(filter(None, endpoints)) or DEFAULT_ENDPOINTS,
            username=text("ETCD_AUTH_USERNAME"),
            password=text("ETCD_AUTH_PASSWORD"),
            ca=text("ETCD_AUTH_CA"),
            cert=text("ETCD_AUTH_CLIENT_CERT"),
            key=text("ETCD_AUTH_CLIENT_KEY"),
            lease_ttl_s=_seconds(given, "ETCD_LEASE_TTL", LEASE_TTL_S),
            startup_timeout_s=_seconds(given, "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", 120.0),
        )


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """(scheme or "", HOST:PORT); ConfigError if it is no address of an etcd."""
    scheme, found, rest = endpoint.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        fits = scheme in ("http", "https") if found else not scheme
        if fits and parts.hostname and "@" not in rest and not parts.path.strip("/"):
            return scheme, joined(parts.hostname, parts.port or DEFAULT_PORT)
    except ValueError:
        pass
    text = f"{redact_url(endpoint)!r} is not the address of an etcd: expected http://HOST:PORT"
    raise bad_setting("ETCD_ENDPOINTS", text)


def pem(value: str | None, variable: str) -> bytes | None:
    """The PEM text that a setting holds, or names the file of. ConfigError if it cannot be read."""
    if value is None:
        return None
    return value.encode() if "-----BEGIN " in value else read_file(value, variable)


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise bad_setting(name, f"{text!r} is no number of seconds")
    return seconds
