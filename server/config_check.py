"""What a configuration asks for in vain, and what only this machine can show of it."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..process.settings import Resolved, bad_setting
from ..router.config import DYNAMO, DYNAMO_KNOBS
from ..router.policy import LOWER_TIER_WEIGHTS
from ..workers.records import STATIC
from ..workers.worker_url import WorkerUrl, parse_worker
from .config import ServeConfig

_OF_GRPC = (
    "max_questions",
    "max_metadata_bytes",
    "max_answer_bytes",
    "max_connections",
    "connection_handshake_s",
    "connection_age_s",
    "connection_age_grace_s",
    "message_timeout_s",
)
_OF_KV = ("policy", "router_temperature", *DYNAMO_KNOBS, *LOWER_TIER_WEIGHTS)


class _Rule(NamedTuple):
    """Settings that have no effect, `because`, in a configuration where that is not None."""

    keys: Sequence[str]
    because: Callable[[ServeConfig], str | None]


def _unless_kv(config: ServeConfig) -> str | None:
    return None if config.router.mode == "kv" else f"the mode is {config.router.mode}"


def _without_kv_events(config: ServeConfig) -> str | None:
    return None if config.router.use_kv_events else "KV events are not used"


def _unless_nats(config: ServeConfig) -> str | None:
    grpc = config.event_sources == "grpc" and config.router.use_kv_events
    return "events come from engines alone" if grpc else None


def _unless_requests_wait(config: ServeConfig) -> str | None:
    router = config.router
    admission = router.admission
    if admission.queue_threshold is not None or admission.max_requests_per_worker is not None:
        return None
    # The policy forecast holds requests, and that of an installed package may.
    may_hold = router.mode == "kv" and not router.policy_name.startswith(DYNAMO)
    return None if may_hold and admission.hold else "no request waits in the router"


def _unless_snapshots(config: ServeConfig) -> str | None:
    return None if config.index_snapshot is not None else "there is no index_snapshot"


def _unless_mock_engines(config: ServeConfig) -> str | None:
    return None if config.mock_engines.mockers else "there are no mock engines"


def _without_grpc(config: ServeConfig) -> str | None:
    return None if config.has_grpc else "there is no gRPC port"


def _with_queue_threshold(config: ServeConfig) -> str | None:
    given = config.router.admission.queue_threshold is not None
    return "queue_threshold decides which requests wait" if given else None


def _unless_envoy_asks(config: ServeConfig) -> str | None:
    envoy = getattr(config, "envoy", None)  # of those commands that know text
    return None if envoy is None or envoy.is_served else "ext_proc_port is not given"


RULES = (
    _Rule([f"router.{name}" for name in _OF_KV], _unless_kv),
    _Rule(["nats"], _unless_nats),
    _Rule(
        ["nats", "namespace", "component", "endpoint"],
        lambda config: _without_kv_events(config) if config.backend == STATIC else None,
    ),
    _Rule(
        ["router.router_max_index_blocks",
         "router.max_unknown_workers", "unknown_worker_ttl_s"],
        _without_kv_events,
    ),
    _Rule(
        ["router.admission.queue_policy", "router.admission.queue_limit", "limits.queue_timeout_s"],
        _unless_requests_wait,
    ),
    _Rule(["router.admission.hold"], _with_queue_threshold),
    _Rule(
        ["response_host"],
        lambda config: "workers are not discovered" if config.backend == STATIC else None,
    ),
    _Rule([f"peers.{name}" for name in _OF_GRPC], _without_grpc),
    _Rule(["index_snapshot_interval_s"], _unless_snapshots),
    _Rule(
        ["router_snapshot_threshold", "router_reset_states"],
        lambda config: None if config.durable_kv_events else "KV events are not durable",
    ),
    _Rule(
        ["endpoint_port", "fallbacks", "pick_timeout_s", "secure_serving"], _unless_envoy_asks
    ),
    _Rule(
        ["mocker_port", "speedup_ratio", "num_gpu_blocks", "max_num_seqs",
         "max_num_batched_tokens", "max_model_len"],
        _unless_mock_engines,
    ),
)  # fmt: skip


def vain_settings(resolved: Resolved[Any]) -> list[str]:
    """A sentence on each setting that was given and has no effect."""
    lines = _unread_streams(resolved.config)
    for rule in RULES:
        because = rule.because(resolved.config)
        known = resolved.origins
        given = [key for key in rule.keys if known.get(key, "default") != "default"]
        if because is not None:
            lines += [f"{key} ({resolved.origins[key]}) has no effect: {because}" for key in given]
    return lines


def _unread_streams(config: ServeConfig) -> list[str]:
    """On each worker whose URL names a stream of events that the router is not to read."""
    lines = []
    for url in map(parse_worker, config.workers):
        if not isinstance(url, WorkerUrl) or url.events is None:
            continue
        kind = "http" if url.events.startswith("http") else "zmq"
        if not config.router.use_kv_events:
            why = "KV events are not used"
        elif config.event_sources not in ("auto", kind):
            why = f"event_sources is {config.event_sources}"
        else:
            continue
        lines.append(f"events={url.events} of worker {url.address} has no effect: {why}")
    return lines


def check_snapshot_path(path: str) -> None:
    """ConfigError if a file cannot be written there, as it will be: a new one in its place."""
    target = Path(path)
    if target.is_dir():
        raise _no_snapshot(path, "it is a folder")
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise _no_snapshot(path, os.strerror(error.errno) if error.errno else str(error)) from None


def _no_snapshot(path: str, reason: str) -> Any:
    return bad_setting("index_snapshot", f"cannot write {path}: {reason}")
