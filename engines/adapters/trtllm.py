"""TrtllmEngine: tensorrt_llm.LLM as a ServedEngine; the command `dynamo-router worker trtllm`."""

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncGenerator
from typing import Any

import structlog
import uvloop

from ...base.errors import InvalidRequestError, RouterError, WorkerError
from ...indexer.wire import StorageTier
from ...process.supervised import stopped, supervise
from ...workers.dialects import TokenLogprob
from ...workers.engine_facts import EngineFacts
from ..serving import (
    AnswerPart,
    CachedBlock,
    EngineLoad,
    EngineRequest,
    OnEvents,
    run_worker,
    unsupported,
)
from .config import TrtllmConfig
from .library import cannot_run, load_library, token_logprobs
from .model_facts import model_facts
from .running import RunningAnswer, RunningRequests
from .trtllm_cache import TrtllmCache
from .trtllm_params import sampling_params

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.02
"""Between two looks for events: half as long again each time that there is none."""
HEALTH_INTERVAL_S = 1.0
MOST_EVENTS = 256
"""Taken in at once."""
DEFAULT_BLOCK_SIZE = 32
"""The library's, where its settings do not say."""

log = structlog.get_logger(__name__)


def run(config: TrtllmConfig) -> int:
    """The command: the process's exit code. ConfigError if the engine cannot be started."""
    load_library("tensorrt_llm", "trtllm")
    return uvloop.run(run_worker(config, TrtllmEngine(config), config.files()))


class TrtllmEngine:
    """The LLM of one process, with all its GPUs."""

    lower_blocks = 0

    def __init__(self, config: TrtllmConfig) -> None:
        self._config = config
        self.dp_size = config.tensor_parallel_size if config.attention_dp else 1
        self.facts = EngineFacts(model_id=config.served_name)
        self._running = RunningRequests()
        self._cache = TrtllmCache(DEFAULT_BLOCK_SIZE, self.dp_size)
        self._llm: Any = None
        self._results: dict[str, Any] = {}
        """by request: what the library can abort"""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> str:
        failure = self._running.failure
        return "OK" if failure is None else f"failed: {failure}"

    async def start(self, on_events: OnEvents) -> None:
        library = load_library("tensorrt_llm", "trtllm")
        api = load_library("tensorrt_llm.llmapi", "trtllm")
        self._make_params, self._make_guide = library.SamplingParams, api.GuidedDecodingParams
        self._known = {field.name for field in dataclasses.fields(library.SamplingParams)}
        config = self._config
        try:
            # On this thread: it sets signal handlers. Nothing else is served until it is there.
            self._llm = library.LLM(**self._arguments(api))
        except Exception as error:
            raise cannot_run("TensorRT-LLM", config.model, error) from error
        self._accepts = set(inspect.signature(self._llm.generate_async).parameters)
        args = self._llm.args
        block_size = _setting(args.kv_cache_config, "tokens_per_block") or DEFAULT_BLOCK_SIZE
        self._cache = TrtllmCache(block_size, self.dp_size)
        for rank, changes in self._cache.take(await self._new_events()):
            on_events(rank, changes)
        self.facts = model_facts(
            config,
            backend="tensorrt-llm",
            version=str(getattr(library, "__version__", "")),
            block_size=block_size,
            total_blocks=self._cache.total_blocks,
            max_seq_len=_setting(args, "max_seq_len"),
            max_num_seqs=_setting(args, "max_batch_size"),
            max_num_batched_tokens=_setting(args, "max_num_tokens"),
        )
        self._tasks = [
            supervise("engine events", lambda: self._follow(on_events)),
            supervise("engine health", self._watch),
        ]

    def generate(self, request: EngineRequest) -> RunningAnswer:
        return RunningAnswer(self._running, request.request_id, self._parts(request))

    async def abort(self, request_id: str) -> bool:
        result = self._results.get(request_id)
        if result is None:
            return False
        result.abort()
        return True

    def cached_blocks(self, rank: int, tier: StorageTier) -> list[CachedBlock]:
        return self._cache.mirror.cached_blocks(rank, tier)

    def load(self, rank: int) -> EngineLoad:
        """Requests of all ranks: the library does not say which rank has which."""
        return EngineLoad(
            running=len(self._running), inactive_blocks=self._cache.mirror.count(rank)
        )

    async def lost(self) -> str:
        return await self._running.lost()

    async def stop(self) -> None:
        for result in list(self._results.values()):
            result.abort()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await stopped(task)
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def _arguments(self, api: Any) -> dict[str, Any]:
        """Of the LLM: what the settings say, over what `engine_args` says."""
        config, more = self._config, self._config.more_args
        cache = {
            **(more.pop("kv_cache_config", None) or {}),
            "enable_block_reuse": True,
            "event_buffer_max_size": config.event_buffer,
        }
        if config.block_size is not None:
            cache["tokens_per_block"] = config.block_size
        if config.kv_cache_memory is not None:
            cache["free_gpu_memory_fraction"] = config.kv_cache_memory
        arguments = {
            **more,
            "model": config.model,
            "tensor_parallel_size": config.tensor_parallel_size,
            "kv_cache_config": api.KvCacheConfig(**cache),
        }
        if config.attention_dp:
            arguments["enable_attention_dp"] = True
        for name, value in (
            ("max_seq_len", config.max_model_len),
            ("max_batch_size", config.max_num_seqs),
            ("max_num_tokens", config.max_num_batched_tokens),
        ):
            if value is not None:
                arguments[name] = value
        return arguments

    async def _parts(self, request: EngineRequest) -> AsyncGenerator[AnswerPart, None]:
        sent = [0] * request.answers
        left = set(range(request.answers))
        try:
            result = self._results[request.request_id] = self._submit(request)
            async for output in result:
                for answer in sorted(left):
                    part = _part(output, answer, sent[answer], request)
                    sent[answer] += len(part.tokens)
                    if part.finish_reason:
                        left.discard(answer)
                    if part.tokens or part.finish_reason:
                        yield part
                if not left:
                    return
            raise WorkerError("the engine's answer ended without a reason")
        except RouterError:
            raise
        except Exception as error:
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        finally:
            result = self._results.pop(request.request_id, None)
            if result is not None and left:
                result.abort()

    def _submit(self, request: EngineRequest) -> Any:
        asked = sampling_params(request, self._known)
        more: dict[str, Any] = {}
        if request.cache_namespace is not None:
            if "cache_salt" not in self._accepts:
                raise unsupported("a cache salt", "cache_salt_id")
            more["cache_salt"] = request.cache_namespace
        if request.dp_rank is not None:
            more |= self._on_rank(request.dp_rank)
        try:
            if "guided_decoding" in asked:
                asked["guided_decoding"] = self._make_guide(**asked["guided_decoding"])
            return self._llm.generate_async(
                {"prompt_token_ids": request.token_ids.tolist()},
                sampling_params=self._make_params(**asked),
                streaming=request.streaming,
                **more,
            )
        except (ValueError, TypeError) as error:  # what it says of requests that it cannot run
            raise InvalidRequestError(str(error)) from error

    def _on_rank(self, rank: int) -> dict[str, Any]:
        if not 0 <= rank < self.dp_size:
            text = f"there is no data-parallel rank {rank}, the engine has {self.dp_size}"
            raise InvalidRequestError(text, field="dp_rank")
        if self.dp_size == 1:
            return {}
        if "scheduling_params" not in self._accepts:
            raise unsupported("a data-parallel rank", "dp_rank")
        made = load_library("tensorrt_llm.scheduling_params", "trtllm").SchedulingParams
        return {"scheduling_params": made(attention_dp_rank=rank, attention_dp_relax=False)}

    async def _new_events(self) -> list[Any]:
        """Those that wait in the library."""
        events: list[Any] = []
        try:
            async for event in self._llm.get_kv_cache_events_async(timeout=0):
                events += event if isinstance(event, list) else [event]
                if len(events) >= MOST_EVENTS:
                    break
        except (IndexError, TimeoutError, asyncio.QueueEmpty):
            pass  # how the library says that there are no more
        return events

    async def _follow(self, on_events: OnEvents) -> None:
        pause_s = FIRST_PAUSE_S
        while self._cache.refused is None:
            events = await self._new_events()
            for rank, changes in self._cache.take(events):
                on_events(rank, changes)
            pause_s = FIRST_PAUSE_S if events else min(1.5 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(0 if len(events) >= MOST_EVENTS else pause_s)

    async def _watch(self) -> None:
        """Notice that the engine is gone: the library says so only when it is asked."""
        while (reason := _failure_of(self._llm)) is None:
            await asyncio.sleep(HEALTH_INTERVAL_S)
        log.error("TensorRT-LLM is gone", reason=reason)
        self._running.fail(reason)


def _part(output: Any, answer: int, sent: int, request: EngineRequest) -> AnswerPart:
    """What one of a result's outputs has beyond what was sent."""
    one = output.outputs[answer]
    tokens = list(one.token_ids[sent:])
    logprobs: list[TokenLogprob] = []
    if request.logprobs is not None and tokens:
        logprobs = token_logprobs(tokens, one.logprobs[sent:], request.logprobs)
    return AnswerPart(
        tokens,
        answer,
        int(getattr(output, "cached_tokens", 0) or 0),
        logprobs,
        one.finish_reason or "",
        one.stop_reason,
    )


def _failure_of(llm: Any) -> str | None:
    """Why the library's engine does not run any more; None if it does, as far as it says."""
    executor = getattr(llm, "_executor", None)
    if executor is None or executor.is_shutdown():
        return f"its executor has stopped: {getattr(executor, '_fatal_error', None)}"
    check = getattr(llm, "_check_health", None)
    return None if check is None or check() else "its health check fails"


def _setting(settings: Any, name: str) -> int:
    """A number of the library's settings, which are objects or maps; 0 where it does not say."""
    value = settings.get(name) if isinstance(settings, dict) else getattr(settings, name, None)
    return value if isinstance(value, int) else 0
