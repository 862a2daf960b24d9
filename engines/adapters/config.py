"""Settings of the commands `worker trtllm` and `worker vllm`: how to make and serve an engine."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ...process.settings import bad_setting, option
from ...workers.records import model_files
from ..serving import ServingConfig, require


@dataclass(frozen=True, kw_only=True)
class EngineWorkerConfig(ServingConfig):
    """ConfigError, naming the key, if a value is out of range or there is no such model."""

    GROUP: ClassVar[str] = "Engine"

    model: str = option("", "The model: a folder, or a name that the engine can fetch.", short=True)
    model_path: str | None = option(
        None,
        "With --discovery: folder of the model's tokenizer, for frontends. Not given: --model, if"
        " it is a folder.",
        group="Registration",
        short=True,
    )
    block_size: int | None = option(
        None, "Tokens in a KV-cache block; not given: the engine's own choice.", short=True
    )
    max_model_len: int | None = option(
        None, "Longest prompt and output together, in tokens; not given: the model's.", short=True
    )
    max_num_seqs: int | None = option(None, "Most requests running at once.", short=True)
    max_num_batched_tokens: int | None = option(
        None, "Tokens computed in one step, all requests together.", short=True
    )
    tensor_parallel_size: int = option(1, "GPUs that share each layer.", short=True)
    kv_cache_memory: float | None = option(
        None, "Share of the GPU's memory for the engine, in the engine's own terms.", short=True
    )
    engine_args: str = option(
        "",
        "More arguments of the engine, as a JSON object; they come before the others here.",
        short=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require("model", bool(self.model), "name a model: --model")
        if _is_path(self.model) and not Path(self.model).is_dir():
            raise bad_setting("model", f"there is no folder {self.model}")
        for key in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, key)
            require(key, value is None or value >= 1, "must be at least 1")
        require("tensor_parallel_size", self.tensor_parallel_size >= 1, "must be at least 1")
        share = self.kv_cache_memory
        require("kv_cache_memory", share is None or 0 < share <= 1, "must be in (0, 1]")
        _ = self.more_args

    @property
    def more_args(self) -> dict[str, Any]:
        """The engine's further arguments. ConfigError if they are no JSON object."""
        try:
            return msgspec.json.decode(self.engine_args or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise bad_setting("engine_args", f"not a JSON object: {error}") from None

    @property
    def served_name(self) -> str:
        """What clients call the model."""
        return self.model_id or os.path.basename(self.model.rstrip("/")) or self.model

    def files(self) -> dict[str, Any]:
        """The part of the model's card that names its files; ConfigError as `model_files`."""
        folder = self.model_path or (self.model if Path(self.model).is_dir() else None)
        return {} if folder is None else model_files(folder)


@dataclass(frozen=True, kw_only=True)
class TrtllmConfig(EngineWorkerConfig):
    """What `dynamo-router worker trtllm` runs."""

    GROUP: ClassVar[str] = "Engine"

    attention_dp: bool = option(
        False,
        "Attention of each GPU for requests of its own: as many data-parallel ranks.",
        short=True,
    )
    event_buffer: int = option(
        100_000, "KV events that the engine keeps until they are read; what is more gets lost."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require("event_buffer", self.event_buffer >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class VllmConfig(EngineWorkerConfig):
    """What `dynamo-router worker vllm` runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = self.more_args.get("data_parallel_size", 1)
        text = "data_parallel_size is not supported: start a worker for each rank"
        require("engine_args", ranks == 1, text)


def _is_path(model: str) -> bool:
    """Whether it can be nothing else; a name at a hub has at most one slash."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1
