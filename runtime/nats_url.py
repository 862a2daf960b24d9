"""The address of a NATS server: the default one, and an address taken apart."""

from urllib.parse import urlsplit

from .errors import ConfigError

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"


def split_nats_url(url: str) -> tuple[str, int]:
    """Host and port of a `nats://` or `tls://` address; ConfigError if it is none."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path.strip("/"):
            raise ValueError("expected nats://HOST:PORT")
        return parts.hostname, parts.port or 4222
    except ValueError as error:
        raise ConfigError(
            f"{url!r} is not the address of a NATS server: {error}", key="nats"
        ) from None
