"""The URL of a worker: where its engine listens, and the options given there."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from ..base.errors import ConfigError
from ..base.identity import MAX_DP_RANK, MAX_WORKER_ID, address_worker_id
from ..base.urls import is_printable, joined, redact_url
from .registry import MAX_RANKS, check_weight
from .transfer_facts import BOOTSTRAP, MOONCAKE, NIXL, NIXL_PUSH, TransferFacts

TRTLLM, OPENAI = "trtllm", "openai"
_SCHEMES = {
    "grpc": (TRTLLM, False),
    "grpcs": (TRTLLM, True),
    "openai+http": (OPENAI, False),
    "openai+https": (OPENAI, True),
}
_PATHS = {TRTLLM: ("", "/"), OPENAI: ("", "/", "/v1", "/v1/")}
_DNS = "+dns"
_NUMBERS = {
    "id": (0, MAX_WORKER_ID),
    "dp_size": (1, MAX_RANKS),
    "dp_start": (0, MAX_DP_RANK + 1 - MAX_RANKS),
    "handoff_port": (1, 65535),
    "tp": (1, 1024),
    "pp": (1, 1024),
}
_WEIGHT, _FAMILY = "weight", "family"
_FAMILIES = ("ipv4", "ipv6", "any")
_EVENTS, _REPLAY = "events", "replay"
_ZMQ, _HTTP = ("tcp", "ipc"), ("http", "https")
_HANDOFF, _ENGINE_IDS = "handoff", "engine_id"
_HANDOFF_PORTS = {NIXL: 0, NIXL_PUSH: 5600, MOONCAKE: 8998, BOOTSTRAP: 8998}
"""Ways that an engine may not state itself, and where partners look for it."""
_OF_WORKERS = (*_NUMBERS, _WEIGHT, _EVENTS, _REPLAY, _HANDOFF, _ENGINE_IDS)
_OF_NAMES = ("dp_size", "dp_start", _WEIGHT, _FAMILY)


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
    tls_name: str | None = None
    """whom its certificate must name, if not the host of the address"""
    events: str | None = None
    """where it publishes its KV events if that is elsewhere: tcp:// or ipc:// (ZMQ), http:// or https://"""
    replay: str | None = None
    """with ZMQ: its replay socket"""
    dialect: str = TRTLLM
    """how it is called: trtllm (gRPC, whichever service it has) or openai (HTTP)"""
    transfer: TransferFacts = TransferFacts()
    """how it hands prompts over, where its engine does not say"""
    parallel: tuple[int, int] = (0, 0)
    """its tensor and pipeline parallel sizes; 0: not given"""

    @property
    def default_id(self) -> int:
        """The id of an engine that announces none itself."""
        return address_worker_id(self.address) if self.worker_id is None else self.worker_id


@dataclass(frozen=True)
class WorkerName:
    """A DNS name each of whose addresses is a worker, and what its URL claims of all of them."""

    host: str
    port: int
    tls: bool = False
    dp_size: int = 1
    dp_start: int = 0
    weight: float = 1.0
    family: str | None = None
    """ipv4, ipv6 or any; None: ipv4 where the name has such addresses, else ipv6"""

    def worker_at(self, ip: str) -> WorkerUrl:
        """The worker at one of the name's addresses."""
        return WorkerUrl(
            joined(ip, self.port),
            None,
            self.dp_size,
            self.dp_start,
            self.tls,
            self.weight,
            self.host if self.tls else None,
        )

    def __str__(self) -> str:
        return f"{'grpcs' if self.tls else 'grpc'}+dns://{joined(self.host, self.port)}"


def parse_worker_url(url: str) -> WorkerUrl:
    """Read grpc://HOST:PORT[?id=WORKER_ID&dp_size=RANKS&dp_start=FIRST_RANK&weight=WEIGHT
    &events=URL&replay=URL&handoff=CONNECTOR&handoff_port=PORT&engine_id=ID,...&tp=RANKS&pp=RANKS],
    "HOST:PORT" alone will do; grpcs:// is over TLS. An engine that speaks OpenAI's HTTP is
    openai+http:// or openai+https://. ConfigError if it is something else.
    """
    parsed = parse_worker(url)
    if isinstance(parsed, WorkerName):
        text = f"worker {str(parsed)!r} is a name of several, which belongs in the configuration"
        raise ConfigError(text, key="workers")
    return parsed


def parse_worker(url: str) -> WorkerUrl | WorkerName:
    """The same, or a name: grpc+dns://NAME:PORT[?dp_size=...&dp_start=...&weight=...&family=...],
    grpcs+dns:// over TLS.
    """
    shown = redact_url(url)
    try:
        if not is_printable(url):
            raise ValueError
        parts = urlsplit(url if "://" in url.partition("?")[0] else f"grpc://{url}")
        port = parts.port
        scheme = parts.scheme.removesuffix(_DNS)
        dns = scheme != parts.scheme
        dialect, tls = _SCHEMES[scheme]
        fits = "@" not in parts.netloc and parts.path in _PATHS[dialect]
        fits = fits and not (dns and dialect == OPENAI)
    except (ValueError, KeyError):
        fits = False
    if not fits or not parts.hostname or not port:
        raise ConfigError(
            f"worker {shown!r} is not grpc://HOST:PORT or grpcs://HOST:PORT, nor "
            "openai+http://HOST:PORT or openai+https://HOST:PORT",
            key="workers",
        )
    claims = _read_claims(shown, parts.query, _OF_NAMES if dns else _OF_WORKERS)
    weight = _read_weight(shown, claims.pop(_WEIGHT, None))
    family = claims.pop(_FAMILY, None)
    if family not in (None, *_FAMILIES):
        text = f"worker {shown!r}: {_FAMILY} is not one of {', '.join(_FAMILIES)}"
        raise ConfigError(text, key="workers")
    events, replay = claims.pop(_EVENTS, None), claims.pop(_REPLAY, None)
    connector, engine_ids = claims.pop(_HANDOFF, None), claims.pop(_ENGINE_IDS, None)
    numbers = {key: _read_number(shown, key, text) for key, text in claims.items()}
    dp_size, dp_start = numbers.get("dp_size", 1), numbers.get("dp_start", 0)
    _check_events(shown, events, replay, dp_size)
    if dns:
        return WorkerName(parts.hostname, port, tls, dp_size, dp_start, weight, family)
    transfer = _transfer(shown, parts.hostname, connector, engine_ids, numbers, dialect)
    address = joined(parts.hostname, port)
    worker_id = numbers.get("id")
    return WorkerUrl(
        address,
        worker_id,
        dp_size,
        dp_start,
        tls,
        weight,
        events=events,
        replay=replay,
        dialect=dialect,
        transfer=transfer,
        parallel=(numbers.get("tp", 0), numbers.get("pp", 0)),
    )


def _read_claims(shown: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    """What stands after the question mark, each once."""
    claims = {}
    for key, values in parse_qs(query, keep_blank_values=True).items():
        if key not in known or len(values) > 1:
            raise ConfigError(
                f"worker {shown!r}: only one each of {', '.join(known)} may follow", key="workers"
            )
        claims[key] = values[0]
    return claims


def _read_number(shown: str, key: str, text: str) -> int:
    least, most = _NUMBERS[key]
    if not (text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise ConfigError(f"worker {shown!r}: {key} is not in {least}..{most}", key="workers")
    return int(text)


def _check_events(shown: str, events: str | None, replay: str | None, dp_size: int) -> None:
    """ConfigError unless these are addresses of an engine's events."""
    wrong = None
    for key, url, schemes in ((_EVENTS, events, _ZMQ + _HTTP), (_REPLAY, replay, _ZMQ)):
        scheme, colon, rest = (url or "").partition("://")
        if url is not None and not (scheme in schemes and rest.strip("/")):
            wrong = f"{key} is not {', '.join(f'{scheme}://' for scheme in schemes)}"
    over_zmq = (events or "").startswith(_ZMQ)
    if wrong is None and replay is not None and not over_zmq:
        wrong = f"{_REPLAY} needs {_EVENTS} over ZMQ"
    if wrong is None and over_zmq and dp_size > 1:
        wrong = "over ZMQ each rank has a socket of its own: make each of them a worker"
    if wrong is not None:
        raise ConfigError(f"worker {shown!r}: {wrong}", key="workers")


def _transfer(
    shown: str,
    host: str,
    connector: str | None,
    engine_ids: str | None,
    numbers: dict[str, int],
    dialect: str,
) -> TransferFacts:
    """What a URL says of its engine's hand-offs. ConfigError where that cannot be."""
    port = numbers.get("handoff_port", 0)
    ids = tuple((engine_ids or "").split(",")) if engine_ids is not None else ()
    wrong = None
    if connector is None and (port or ids):
        wrong = f"handoff_port and {_ENGINE_IDS} need {_HANDOFF}"
    elif connector is not None and connector not in _HANDOFF_PORTS:
        wrong = f"{_HANDOFF} is not one of {', '.join(_HANDOFF_PORTS)}"
    elif ids and (connector != NIXL_PUSH or not all(ids) or len(ids) != numbers.get("dp_size", 1)):
        wrong = f"{_ENGINE_IDS} is one id for each rank, with {_HANDOFF}={NIXL_PUSH}"
    elif connector == NIXL_PUSH and not ids and dialect == OPENAI:  # over gRPC vLLM says it
        wrong = f"{_HANDOFF}={NIXL_PUSH} needs {_ENGINE_IDS}: vLLM's engine id, of each rank"
    if wrong is not None:
        raise ConfigError(f"worker {shown!r}: {wrong}", key="workers")
    if connector is None:
        return TransferFacts()
    port = port or _HANDOFF_PORTS[connector]
    return TransferFacts(connector=connector, host=host, port=port, engine_ids=ids)


def _read_weight(shown: str, text: str | None) -> float:
    try:
        return 1.0 if text is None else check_weight(float(text))
    except ValueError:
        raise ConfigError(
            f"worker {shown!r}: {_WEIGHT} is not above 0 and at most 1", key="workers"
        ) from None
