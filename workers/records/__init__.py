"""Who are the workers? What they write into the key-value store, and what a router makes of it."""

from .card_files import CardFile, WrongFileError, checked_folder, model_files
from .config import STATIC, DiscoveryConfig, EventPlaneConfig
from .departures import Departures
from .discovered import TRTLLM, DiscoveredWorker, EndpointWorkers
from .end_tokens import end_tokens_of
from .event_keys import (
    EVENT_SOURCES,
    RECOVERY,
    PublisherRecord,
    by_worker,
    decode_source,
    event_channel,
    event_source,
)
from .model_card import (
    CARDS,
    DECODE,
    ENCODE,
    PREFILL,
    ModelCard,
    adapter_id,
    decode_card,
    encode_card,
    read_card_key,
)
from .planner_keys import DECISIONS, STATUS, read_plan
from .worker_watch import WorkerWatch
