"""The URL of a worker: where its engine listens, and what is claimed of it there."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from ..runtime.errors import ConfigError
from ..runtime.identity import MAX_DP_RANK, MAX_WORKER_ID, address_worker_id
from ..runtime.urls import redact_url
from .registry import MAX_RANKS, check_weight

_NUMBERS = {
    "id": (0, MAX_WORKER_ID),
    "dp_size": (1, MAX_RANKS),
    "dp_start": (0, MAX_DP_RANK + 1 - MAX_RANKS),
}
_WEIGHT = "weight"


@dataclass(frozen=True)
class WorkerUrl:
    """Where an engine listens, and what its URL claims: an id, data-parallel ranks, a weight.

    What the engine announces itself goes before its id and ranks here.
    """

    address: str
    worker_id: int | None = None
    dp_size: int = 1
    dp_start: int = 0
    tls: bool = False
    weight: float = 1.0

    @property
    def default_id(self) -> int:
        """The id of an engine that announces none itself."""
        return address_worker_id(self.address) if self.worker_id is None else self.worker_id


def parse_worker_url(url: str) -> WorkerUrl:
    """Read grpc://HOST:PORT[?id=WORKER_ID&dp_size=RANKS&dp_start=FIRST_RANK&weight=WEIGHT],
    "HOST:PORT" alone will do; grpcs:// is over TLS. ConfigError if it is something else.
    """
    shown = redact_url(url)
    try:
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        port = parts.port
        fits = parts.scheme in ("grpc", "grpcs") and "@" not in parts.netloc
    except ValueError:
        fits = False
    if not fits or not parts.hostname or not port or parts.path not in ("", "/"):
        raise ConfigError(
            f"worker {shown!r} is not grpc://HOST:PORT or grpcs://HOST:PORT", key="workers"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    claims = _read_claims(shown, parts.query)
    weight = _read_weight(shown, claims.pop(_WEIGHT, None))
    numbers = {key: _read_number(shown, key, text) for key, text in claims.items()}
    return WorkerUrl(
        f"{host}:{port}",
        numbers.get("id"),
        numbers.get("dp_size", 1),
        numbers.get("dp_start", 0),
        parts.scheme == "grpcs",
        weight,
    )


def _read_claims(shown: str, query: str) -> dict[str, str]:
    """What stands after the question mark, each once."""
    claims = {}
    for key, values in parse_qs(query, keep_blank_values=True).items():
        if key not in (*_NUMBERS, _WEIGHT) or len(values) > 1:
            raise ConfigError(
                f"worker {shown!r}: only one each of {', '.join(_NUMBERS)}, {_WEIGHT} may follow",
                key="workers",
            )
        claims[key] = values[0]
    return claims


def _read_number(shown: str, key: str, text: str) -> int:
    least, most = _NUMBERS[key]
    if not (text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise ConfigError(f"worker {shown!r}: {key} is not in {least}..{most}", key="workers")
    return int(text)


def _read_weight(shown: str, text: str | None) -> float:
    try:
        return 1.0 if text is None else check_weight(float(text))
    except ValueError:
        raise ConfigError(
            f"worker {shown!r}: {_WEIGHT} is not above 0 and at most 1", key="workers"
        ) from None
