"""As much of TensorRT-LLM's LLM API as a worker uses: signatures, results and events as the library
documents them, over a small model without a GPU.

Put the folder above on the path to have it in place of the real one. The model's next token is a
function of all tokens before; the prefix cache is of full blocks, the oldest leaf leaves first.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from .llmapi import GuidedDecodingParams, KvCacheConfig

__version__ = "1.3.0rc29"
STEP_S = float(os.environ.get("FAKE_TRTLLM_STEP_S", "0"))
VOCABULARY = 1000


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    max_tokens: int = 32
    bad: list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"require temperature > 0, got temperature={self.temperature}")


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestOutput:
    """A result that is also the iterator of itself, as it grows."""

    def __init__(self, llm: "LLM", prompt: list[int], params: SamplingParams, streaming: bool):
        self._llm, self._params, self._streaming = llm, params, streaming
        self.prompt_token_ids = prompt
        self.outputs = [CompletionOutput(index) for index in range(params.n)]
        self.cached_tokens = 0
        self.aborted = False
        self._news: asyncio.Queue[None] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def finished(self) -> bool:
        return all(output.finish_reason for output in self.outputs)

    def abort(self) -> None:
        self.aborted = True

    def __aiter__(self) -> "RequestOutput":
        return self

    async def __anext__(self) -> "RequestOutput":
        if self.finished and self._news.empty():
            raise StopAsyncIteration
        await self._news.get()
        return self

    async def _run(self) -> None:
        llm, params = self._llm, self._params
        self.cached_tokens = llm.store(self.prompt_token_ids)
        for step in range(params.max_tokens):
            await asyncio.sleep(STEP_S)
            if llm.dead:
                return  # and nobody is told
            for output in self.outputs:
                self._extend(output, last=step + 1 == params.max_tokens)
            if self._streaming or self.finished:
                self._news.put_nowait(None)
            if self.finished:
                return

    def _extend(self, output: CompletionOutput, *, last: bool) -> None:
        params = self._params
        if output.finish_reason:
            return
        if self.aborted:
            output.finish_reason = "cancelled"
            return
        base = sum(self.prompt_token_ids) + sum(output.token_ids)
        token = (base * 31 + output.index + (params.seed or 0)) % VOCABULARY
        output.token_ids.append(token)
        if params.logprobs is not None:
            entries = {(token + n) % VOCABULARY: Logprob(-0.5 - n, n + 1) for n in range(3)}
            output.logprobs.append(entries)
        if token in (params.stop_token_ids or ()):
            if len(output.token_ids) > (params.min_tokens or 0):
                output.finish_reason, output.stop_reason = "stop", token
                if not params.include_stop_str_in_output:
                    output.token_ids.pop()
        elif last:
            output.finish_reason = "length"


class LLM:
    made: list["LLM"] = []
    """those that were made in this process"""

    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        **kwargs: Any,
    ) -> None:
        if model == "broken":
            raise RuntimeError("out of memory")
        self.kwargs = kwargs
        cache: KvCacheConfig = kwargs["kv_cache_config"]
        self.args = SimpleNamespace(
            model=model,
            kv_cache_config=cache,
            max_seq_len=kwargs.get("max_seq_len", 512),
            max_batch_size=kwargs.get("max_batch_size", 8),
            max_num_tokens=kwargs.get("max_num_tokens", 256),
        )
        self.ranks = tensor_parallel_size if kwargs.get("enable_attention_dp") else 1
        self.dead = False
        self.stopped = False
        self.loses_events = False
        """as if its buffer ran over"""
        self.requests: list[tuple[SamplingParams, dict[str, Any]]] = []
        self.capacity = 64
        self._executor = SimpleNamespace(is_shutdown=lambda: self.dead, _fatal_error=None)
        self._blocks: dict[tuple[int, ...], int] = {}
        self._events: list[dict[str, Any]] = []
        self._next_event = 0
        self._tell("created", num_blocks_per_cache_level=[self.capacity, 0])
        LLM.made.append(self)
        die_after = os.environ.get("FAKE_TRTLLM_DIES_AFTER_S")
        if die_after is not None:
            asyncio.get_running_loop().call_later(float(die_after), self.die)

    def die(self) -> None:
        self.dead = True

    def generate_async(
        self,
        inputs: dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        prompt = inputs["prompt_token_ids"]
        assert sampling_params is not None
        if len(prompt) + sampling_params.max_tokens > self.args.max_seq_len:
            raise ValueError("the prompt and max_tokens exceed max_seq_len")
        more = {"scheduling_params": scheduling_params, "cache_salt": cache_salt}
        self.requests.append((sampling_params, more))
        return RequestOutput(self, prompt, sampling_params, streaming)

    async def get_kv_cache_events_async(self, timeout: float | None = 2) -> AsyncIterator[Any]:
        while self._events:
            yield self._events.pop(0)
        raise IndexError

    def shutdown(self) -> None:
        self.stopped = True

    def store(self, prompt: list[int]) -> int:
        """Cache a prompt; how many of its tokens were cached."""
        size = self.args.kv_cache_config.tokens_per_block
        chains = [tuple(prompt[: end + size]) for end in range(0, len(prompt), size)]
        full = [chain for chain in chains if len(chain) % size == 0]
        cached = sum(chain in self._blocks for chain in full)
        new = full[cached:]
        while len(self._blocks) + len(new) > self.capacity:
            self._evict(set(full))
        parent = self._blocks[full[cached - 1]] if cached else None
        blocks = []
        for chain in chains[cached:]:
            block_hash = hash(chain) % 2**64
            if len(chain) % size == 0:
                self._blocks[chain] = block_hash
            blocks.append(_stored_block(block_hash, chain[(len(chain) - 1) // size * size :]))
        if blocks:
            self._tell("stored", parent_hash=parent, blocks=blocks)
        return cached * size

    def blocks(self) -> set[tuple[int, ...]]:
        """The prefixes that are cached."""
        return set(self._blocks)

    def _evict(self, kept: set[tuple[int, ...]]) -> None:
        for chain in self._blocks:
            leaf = not any(len(other) > len(chain) and other[: len(chain)] == chain
                           for other in self._blocks)  # fmt: skip
            if leaf and chain not in kept:
                self._tell("removed", block_hashes=[self._blocks.pop(chain)])
                return

    def _tell(self, kind: str, **data: Any) -> None:
        event = {"event_id": self._next_event, "data": {"type": kind, **data}, "window_size": 512}
        self._next_event += 1
        if not self.loses_events:
            self._events.append(event)


def _stored_block(block_hash: int, tokens: tuple[int, ...]) -> dict[str, Any]:
    return {
        "type": "stored_block",
        "block_hash": block_hash,
        "cache_level": 0,
        "priority": 35,
        "mm_keys": [],
        "cache_salt": None,
        "tokens": [
            {"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens
        ],
    }
