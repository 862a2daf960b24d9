"""Settings of the LLM API."""

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    event_buffer_max_size: int = 0
    tokens_per_block: int = 32
    free_gpu_memory_fraction: float | None = None


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
