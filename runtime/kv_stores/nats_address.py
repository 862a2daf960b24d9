"""Where NATS is, as the environment says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ...base.urls import DEFAULT_NATS_URL
from ...process.settings import bad_setting
from ...transport.security import NatsAuth, NatsAuthConfig


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """Where the servers are (with commas), and how we and they believe each other."""

    url: str = DEFAULT_NATS_URL
    auth: NatsAuth | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "NatsAddress":
        """From NATS_SERVER, NATS_AUTH_USERNAME and _PASSWORD, _TOKEN or _CREDENTIALS_FILE."""
        given = os.environ if environ is None else environ
        url = given.get("NATS_SERVER") or DEFAULT_NATS_URL
        user, password = given.get("NATS_AUTH_USERNAME"), given.get("NATS_AUTH_PASSWORD")
        if bool(user) != bool(password):
            name, other = ("USERNAME", "PASSWORD") if user else ("PASSWORD", "USERNAME")
            raise bad_setting(f"NATS_AUTH_{name}", f"needs NATS_AUTH_{other}")
        if user and password:
            url = _with_userinfo(url, f"{quote(user, safe='')}:{quote(password, safe='')}")
        elif token := given.get("NATS_AUTH_TOKEN"):
            url = _with_userinfo(url, quote(token, safe=""))
        creds = given.get("NATS_AUTH_CREDENTIALS_FILE")
        return cls(url, NatsAuth(NatsAuthConfig(creds=creds)) if creds else None)


def _with_userinfo(urls: str, userinfo: str) -> str:
    parts = []
    for url in urls.split(","):
        scheme, found, rest = url.strip().rpartition("://")
        parts.append(f"{scheme if found else 'nats'}://{userinfo}@{rest.rpartition('@')[2]}")
    return ",".join(parts)
