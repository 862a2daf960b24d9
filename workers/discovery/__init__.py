"""Who are the workers? What they write into the key-value store, and what a router makes of it."""

from .config import STATIC, DiscoveryConfig
from .departures import Departures
from .discovered import TRTLLM, DiscoveredWorker, Fleet
from .event_keys import (
    EVENT_CHANNELS,
    EVENT_SOURCES,
    RECOVERY,
    EventSource,
    decode_source,
    event_channel,
    event_source,
)
from .model_card import CARDS, ModelCard, decode_card, encode_card, tokenizer_files
from .worker_watch import WorkerWatch

__all__ = [
    "CARDS",
    "Departures",
    "DiscoveryConfig",
    "STATIC",
    "TRTLLM",
    "DiscoveredWorker",
    "EVENT_CHANNELS",
    "EVENT_SOURCES",
    "EventSource",
    "Fleet",
    "ModelCard",
    "RECOVERY",
    "WorkerWatch",
    "decode_card",
    "decode_source",
    "encode_card",
    "event_channel",
    "event_source",
    "tokenizer_files",
]
