"""VllmEngine: vLLM's AsyncLLM as a ServedEngine; the command `dynamo-router worker vllm`."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

import structlog
import uvloop

from ...base.errors import InvalidRequestError, RouterError, WorkerError
from ...indexer.wire import StorageTier
from ...process.child_process import KilledAfterUs
from ...process.supervised import stopped, supervise
from ...workers.dialects import TokenLogprob
from ...workers.engine_facts import EngineFacts
from ..serving import (
    AnswerPart,
    CachedBlock,
    EngineLoad,
    EngineRequest,
    EngineUnavailableError,
    OnEvents,
    run_worker,
)
from .cache_mirror import CacheMirror
from .config import VllmConfig
from .library import cannot_run, load_library, token_logprobs
from .model_facts import model_facts
from .running import RunningAnswer, RunningRequests
from .vllm_events import VllmEvents
from .vllm_params import sampling_params

HEALTH_INTERVAL_S = 1.0
STOP_TIMEOUT_S = 10.0
_REASONS = {"abort": "cancelled"}
"""vLLM's words that differ from those of TensorRT-LLM."""

log = structlog.get_logger(__name__)


def run(config: VllmConfig) -> int:
    """The command: the process's exit code. ConfigError if the engine cannot be started."""
    load_library("vllm", "vllm")
    load_library("zmq", "vllm")
    return uvloop.run(run_worker(config, VllmEngine(config), config.files()))


class VllmEngine:
    """The AsyncLLM of one process; its engine's core is a process of its own."""

    dp_size = 1
    lower_blocks = 0

    def __init__(self, config: VllmConfig) -> None:
        self._config = config
        self.facts = EngineFacts(model_id=config.served_name)
        self._running = RunningRequests()
        self._mirror = CacheMirror(1)
        self._llm: Any = None
        self._events: VllmEvents | None = None
        self._sockets: tempfile.TemporaryDirectory[str] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._cores: KilledAfterUs | None = None

    @property
    def status(self) -> str:
        failure = self._running.failure
        return "OK" if failure is None else f"failed: {failure}"

    async def start(self, on_events: OnEvents) -> None:
        library = load_library("vllm", "vllm")
        sampling = load_library("vllm.sampling_params", "vllm")
        errors = load_library("vllm.v1.engine.exceptions", "vllm")
        self._make_params, self._make_guide = (
            sampling.SamplingParams,
            sampling.StructuredOutputsParams,
        )
        # What it says of requests that it cannot run.
        refusal = getattr(load_library("vllm.exceptions", "vllm"), "VLLMClientError", ValueError)
        self._refusals = (ValueError, TypeError, refusal)
        self._kinds, self._dead = sampling.RequestOutputKind, errors.EngineDeadError
        self._sockets = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
        events, replay = (f"ipc://{self._sockets.name}/{name}" for name in ("events", "replay"))
        config = self._config
        try:
            # On this thread and its loop, as vLLM's own servers make it.
            engine_args = library.AsyncEngineArgs(**self._arguments(events, replay))
            make = load_library("vllm.v1.engine.async_llm", "vllm").AsyncLLM
            # Its core would go on without a client, with the memory of the model, also where we
            # end while it loads that. Its core's workers see to themselves.
            self._cores = KilledAfterUs()
            self._llm = make.from_engine_args(engine_args)
            self._cores.settle()
        except Exception as error:
            raise cannot_run("vLLM", config.model, error) from error
        made = self._llm.vllm_config
        self._mirror = CacheMirror(made.cache_config.block_size)
        self.facts = model_facts(
            config,
            backend="vllm",
            version=str(getattr(library, "__version__", "")),
            block_size=made.cache_config.block_size,
            total_blocks=made.cache_config.num_gpu_blocks or 0,
            max_seq_len=made.model_config.max_model_len,
            max_num_seqs=made.scheduler_config.max_num_seqs,
            max_num_batched_tokens=made.scheduler_config.max_num_batched_tokens,
            vocab_size=made.model_config.get_vocab_size(),
        )
        self._events = VllmEvents(events, replay, self._mirror, on_events)
        self._watching = supervise("engine health", self._watch)

    def generate(self, request: EngineRequest) -> RunningAnswer:
        return RunningAnswer(self._running, request.request_id, self._parts(request))

    async def abort(self, request_id: str) -> bool:
        if request_id not in self._running:
            return False
        await self._llm.abort(request_id)
        return True

    async def clear_kv_blocks(self) -> None:
        """See ClearingEngine; the engine's own event reports it."""
        if self._llm is None or self._running.failure is not None:
            raise EngineUnavailableError(self._running.failure or "the engine is stopped")
        if await self._llm.reset_prefix_cache() is False:
            raise WorkerError("the engine did not clear its cache: running requests use it")

    def cached_blocks(self, rank: int, tier: StorageTier) -> list[CachedBlock]:
        return self._mirror.cached_blocks(rank, tier)

    def load(self, rank: int) -> EngineLoad:
        return EngineLoad(running=len(self._running), inactive_blocks=self._mirror.count(rank))

    async def lost(self) -> str:
        return await self._running.lost()

    async def stop(self) -> None:
        await stopped(self._watching)
        events, self._events = self._events, None
        if events is not None:
            await events.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, STOP_TIMEOUT_S)
        cores, self._cores = self._cores, None
        if cores is not None:
            cores.close()
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.cleanup()

    def _arguments(self, events: str, replay: str) -> dict[str, Any]:
        """Of AsyncEngineArgs: what the settings say, over what `engine_args` says."""
        config = self._config
        made = load_library("vllm.config", "vllm").KVEventsConfig
        arguments = {
            "disable_log_stats": True,
            **config.more_args,
            "model": config.model,
            "tensor_parallel_size": config.tensor_parallel_size,
            "enable_prefix_caching": True,
            "kv_events_config": made(
                enable_kv_cache_events=True,
                publisher="zmq",
                endpoint=events,
                replay_endpoint=replay,
            ),
        }
        for name, value in (
            ("block_size", config.block_size),
            ("max_model_len", config.max_model_len),
            ("max_num_seqs", config.max_num_seqs),
            ("max_num_batched_tokens", config.max_num_batched_tokens),
            ("gpu_memory_utilization", config.kv_cache_memory),
        ):
            if value is not None:
                arguments[name] = value
        return arguments

    async def _parts(self, request: EngineRequest) -> AsyncGenerator[AnswerPart, None]:
        if request.dp_rank not in (None, 0):
            text = f"there is no data-parallel rank {request.dp_rank}, the engine has 1"
            raise InvalidRequestError(text, field="dp_rank")
        asked = sampling_params(request)
        kinds = self._kinds
        try:
            if "structured_outputs" in asked:
                asked["structured_outputs"] = self._make_guide(**asked["structured_outputs"])
            params = self._make_params(
                output_kind=kinds.DELTA if request.streaming else kinds.FINAL_ONLY, **asked
            )
            prompt: dict[str, Any] = {"prompt_token_ids": request.token_ids.tolist()}
            if request.cache_namespace is not None:
                prompt["cache_salt"] = request.cache_namespace
            left = set(range(request.answers))
            async for output in self._llm.generate(prompt, params, request.request_id):
                for one in output.outputs:
                    part = _part(output, one, request)
                    if one.index in left and (part.tokens or part.finish_reason):
                        if part.finish_reason:
                            left.discard(one.index)
                        yield part
            if left:
                raise WorkerError("the engine's answer ended without a reason")
        except RouterError:
            raise
        except self._dead as error:
            self._running.fail(f"its core has stopped: {error}")
            raise EngineUnavailableError(str(error)) from error
        except self._refusals as error:
            raise InvalidRequestError(str(error)) from error
        except Exception as error:
            raise WorkerError(f"{type(error).__name__}: {error.__cause__ or error}") from error

    async def _watch(self) -> None:
        """Notice that the engine's core is gone, also without a request."""
        while not self._llm.errored:
            await asyncio.sleep(HEALTH_INTERVAL_S)
        log.error("vLLM is gone")
        self._running.fail("its core has stopped")


def _part(output: Any, one: Any, request: EngineRequest) -> AnswerPart:
    """What an output of one of the answers brings."""
    tokens, matched = list(one.token_ids), one.stop_reason
    logprobs: list[TokenLogprob] = []
    if request.logprobs is not None and one.logprobs:
        logprobs = token_logprobs(tokens, one.logprobs, request.logprobs)
    if isinstance(matched, int) and not request.keep_stop_token and tokens[-1:] == [matched]:
        tokens, logprobs = tokens[:-1], logprobs[: len(tokens) - 1]
    reason = one.finish_reason or ""
    return AnswerPart(
        tokens,
        one.index,
        output.num_cached_tokens or 0,
        logprobs,
        _REASONS.get(reason, reason),
        matched,
    )
