"""A served engine as one of Dynamo's workers: its endpoints on a request plane.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import numpy as np

from ...base.errors import InvalidRequestError, WorkerError
from ...base.urls import joined
from ...runtime.components import EndpointName, Instance
from ...runtime.request_planes import RequestContext, RequestServer, annotated
from ...workers.cache_clearing import CLEAR_ENDPOINT, CLEARED
from ...workers.dialects import TokenLogprob
from ...workers.records import RECOVERY
from .dynamo_recovery import EventRecovery, RankEvents
from .engine import AnswerPart, ClearingEngine, EngineUnavailableError, ServedEngine
from .request import EngineRequest

DEFAULT_MAX_TOKENS = 16
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
"""Options that Dynamo calls as TensorRT-LLM's protocol does."""


class DynamoEndpoints:
    """`generate`, `clear_kv_blocks` where the engine can, and for each rank the endpoint that
    repeats its events; until `close`."""

    def __init__(
        self,
        server: RequestServer,
        host: str,
        name: EndpointName,
        worker_id: int,
        engine: ServedEngine,
        events: Sequence[RankEvents],
    ) -> None:
        self._server, self._host, self._engine = server, host, engine
        self._worker_id = worker_id
        self._paths: list[str] = []
        self.instance = self._serve(name, self._generate)
        self.others: list[Instance] = []
        """endpoints of the worker beside `generate`"""
        if isinstance(engine, ClearingEngine):
            clear = EndpointName(name.namespace, name.component, CLEAR_ENDPOINT)
            self.others.append(self._serve(clear, partial(_clear, engine)))
        self.recovery = [
            self._serve(
                EndpointName(
                    name.namespace, name.component, f"{RECOVERY}{rank.publisher.publisher_id:x}"
                ),
                EventRecovery(worker_id, number, rank).answer,
            )
            for number, rank in enumerate(events)
        ]

    def close(self) -> None:
        """Refuse what comes from now on. Idempotent."""
        for path in self._paths:
            self._server.remove(path)

    def _serve(self, name: EndpointName, handler: Any) -> Instance:
        path = f"{self._worker_id:x}/{name.namespace}/{name.component}/{name.endpoint}"
        self._server.add(path, handler)
        self._paths.append(path)
        address = f"{joined(self._host, self._server.port)}/{path}"
        return Instance(name, self._worker_id, "tcp", address, "msgpack")

    async def _generate(self, body: Any, context: RequestContext) -> AsyncGenerator[object, None]:
        request = _engine_request(body, context.id)
        try:
            async for part in self._parts(request):
                yield part
        except EngineUnavailableError as error:
            # The caller is to take it for a broken connection, not for a request that failed.
            raise asyncio.CancelledError from error

    async def _parts(self, request: EngineRequest) -> AsyncGenerator[object, None]:
        sent = 0
        first: dict[str, Any] = {"token_ids": []}
        async with aclosing(self._engine.generate(request)) as parts:
            async for part in parts:
                if part.tokens:
                    message: dict[str, Any] = {"token_ids": part.tokens}
                    if part.logprobs:
                        message["log_probs"] = [each.logprob for each in part.logprobs]
                        message["top_logprobs"] = [_likeliest(each) for each in part.logprobs]
                    if not sent:
                        message["completion_usage"] = _usage(request, part, len(part.tokens))
                    sent += len(part.tokens)
                    if request.max_tokens > 1:
                        yield annotated(message)
                    else:
                        # Of a prefill, Dynamo's frontend looks for a parcel in the first message.
                        first = message
                if part.finish_reason:
                    last: dict[str, Any] = {**first, "finish_reason": part.finish_reason}
                    if part.handoff is not None:
                        last["disaggregated_params"] = msgspec.json.decode(part.handoff)
                    yield annotated(last | {"completion_usage": _usage(request, part, sent)})


async def _clear(
    engine: ClearingEngine, body: Any, context: RequestContext
) -> AsyncGenerator[object, None]:
    try:
        await engine.clear_kv_blocks()
    except WorkerError as error:
        yield annotated({"status": "error", "message": str(error)})
    else:
        yield annotated(CLEARED)


def _usage(request: EngineRequest, part: AnswerPart, completion_tokens: int) -> dict[str, Any]:
    prompt = len(request.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {"audio_tokens": None, "cached_tokens": part.cached_tokens},
    }


def _likeliest(token: TokenLogprob) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "token_id": token_id, "logprob": logprob}
        for rank, (token_id, logprob) in enumerate(token.top, start=1)
    ]


def _engine_request(body: Any, request_id: str) -> EngineRequest:
    """InvalidRequestError if it is no body of a request for `generate`."""
    try:
        stop, routing = body["stop_conditions"], body.get("routing") or {}
        sampling, output = body.get("sampling_options") or {}, body.get("output_options") or {}
        stops = (stop.get(f"stop_token_ids{kind}") or () for kind in ("", "_visible", "_hidden"))
        prefilled = body.get("prefill_result")
        handed_over = None if prefilled is None else prefilled["disaggregated_params"]
        given = {name: value for name, value in sampling.items() if value is not None}
        guide = given.pop("guided_decoding", None)
        seed = given.pop("seed", None)
        others = [name for name in ("n", "best_of") if (given.get(name) or 1) > 1]
        others += [name for name in ("use_beam_search",) if given.get(name)]
        others += ["guided_decoding"] if guide else []
        return EngineRequest(
            request_id=request_id,
            token_ids=np.array(body["token_ids"], dtype=np.uint32),
            max_tokens=int(stop.get("max_tokens") or DEFAULT_MAX_TOKENS),
            min_tokens=int(stop.get("min_tokens") or 0),
            seed=None if seed is None else int(seed),
            stop_token_ids=frozenset(token for ids in stops for token in ids),
            keep_stop_token=bool(
                stop.get("stop_token_ids_visible") or given.get("include_stop_str_in_output")
            ),
            ignore_eos=bool(stop.get("ignore_eos")),
            stop=tuple(stop.get("stop") or ()),
            sampling={name: given[name] for name in given if name in _SAMPLING},
            logprobs=output.get("logprobs"),
            prompt_logprobs=output.get("prompt_logprobs"),
            lora_name=routing.get("lora_name"),
            cache_namespace=routing.get("cache_salt"),
            dp_rank=routing.get("dp_rank"),
            handoff=None if prefilled is None else msgspec.json.encode(handed_over),
            others=tuple(others),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequestError(f"not a request for generate: {error!r}") from None
