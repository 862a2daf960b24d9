"""A client of trtllm.TrtllmService that measures: what a replay sends requests with.

It trusts nothing it is sent: each answer's tokens are counted, and the streamed ones compared with
the final message's.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from ...base.errors import ConfigError
from ...process.settings import bad_setting
from ...router.proto.router_pb2 import ListWorkersResponse
from ...server.services import MODE_KEY, POLICY_KEY
from ...workers.channels import MAX_MESSAGE_BYTES
from ...workers.dialects import DP_RANK_KEY
from ...workers.trtllm_client import WORKER_ID_KEY
from ...workers.trtllm_proto import SERVICE, pb
from ...workers.worker_url import parse_worker_url
from .stats import Outcome
from .target import TargetAccess

# What a router sends with its answers, beside the worker's id.
LIST_WORKERS = "/dynamo_router.v1.RouterService/ListWorkers"
aio: Any = grpc.aio  # its stubs know neither EOF nor that serialisers are optional
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


@dataclass(frozen=True)
class TargetInfo:
    """What a target says of itself. 0, empty or None where it does not, as engines do not route."""

    model_id: str = ""
    vocab_size: int = 0
    max_input_len: int = 0
    mode: str = ""
    policy: str = ""
    workers: int | None = None  # that are ready


class LoadClient:
    """Requests to one target over one channel. Use as an async context manager.

    ConfigError if `target` is none of HOST:PORT, grpc://HOST:PORT and grpcs://HOST:PORT, which
    is over TLS.
    """

    def __init__(self, target: str, access: TargetAccess | None = None) -> None:
        try:
            url = parse_worker_url(target)
        except ConfigError:
            raise bad_setting("target", f"{target!r} is not HOST:PORT") from None
        self._address = url.address
        self._access = replace(access or TargetAccess(), tls=url.tls)
        self._channel: Any = None

    async def __aenter__(self) -> "LoadClient":
        self._metadata = self._access.metadata()
        self._channel = self._access.channel(self._address, CHANNEL_OPTIONS)
        # Raw bytes both ways: requests are made ahead of their time, answers parsed once.
        self._generate = self._channel.unary_stream(f"/{SERVICE}/Generate")
        self._model_info = self._channel.unary_unary(f"/{SERVICE}/GetModelInfo")
        self._list_workers = self._channel.unary_unary(LIST_WORKERS)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._channel is not None:
            await self._channel.close(None)

    async def probe(self, timeout_s: float) -> TargetInfo:
        """Wait for the target and ask what it is. ConfigError if it does not answer in time."""
        call = self._model_info(
            b"", timeout=timeout_s, metadata=self._metadata, wait_for_ready=True
        )
        info, metadata = pb.GetModelInfoResponse(), {}
        try:
            info.ParseFromString(await call)
            metadata = dict(await call.initial_metadata())
        except aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"{self._address} does not answer within {timeout_s:g} s"
                raise bad_setting("target", text) from None
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                text = f"{self._address}: {error.code().name}: {error.details()}"
                raise bad_setting("target", text) from None
        except DecodeError:
            text = f"{self._address} does not speak {SERVICE}"
            raise bad_setting("target", text) from None
        return TargetInfo(
            info.model_id,
            info.vocab_size,
            info.max_input_len,
            metadata.get(MODE_KEY, ""),
            metadata.get(POLICY_KEY, ""),
            await self._count_workers(timeout_s),
        )

    async def _count_workers(self, timeout_s: float) -> int | None:
        """How many workers a router has; None if this is an engine, or a router of another kind."""
        try:
            answer = await self._list_workers(b"", timeout=timeout_s, metadata=self._metadata)
            workers = ListWorkersResponse.FromString(answer).workers
        except (aio.AioRpcError, DecodeError):
            return None
        return sum(worker.state == "ready" for worker in workers) or None

    async def generate(self, request: bytes, expected: int, timeout_s: float | None) -> Outcome:
        """Send a serialised GenerateRequest and read its answer to the end; never raises for it.

        `expected` is the number of tokens the answer must have. Cancelling the caller cancels the
        request at the target.
        """
        outcome = Outcome()
        answer = _Answer(outcome)
        started = perf_counter()
        call: Any = self._generate(request, timeout=timeout_s, metadata=self._metadata)
        try:
            while (data := await call.read()) is not aio.EOF:
                answer.take(data, started)
            outcome.e2e_ms = (perf_counter() - started) * 1e3
            answer.finish(expected)
            outcome.worker = _worker_of(await call.initial_metadata()) or _worker_of(
                await call.trailing_metadata()
            )
        except aio.AioRpcError as error:
            outcome.code = error.code().name
            outcome.reason = error.details() or ""
            outcome.rejected = _is_rejection(error.code(), outcome.reason)
        except DecodeError:
            outcome.code = "UNDECODABLE"
        finally:
            call.cancel()  # does nothing to a call that is over
        return outcome


class _Answer:
    """One answer's messages, as they come in."""

    __slots__ = ("_final", "_last", "_outcome", "_streamed")

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._streamed: list[int] = []
        self._final: Any = None
        self._last = 0.0

    def take(self, data: bytes, started: float) -> None:
        now = perf_counter()
        message = pb.GenerateResponse.FromString(data)
        if message.WhichOneof("response") == "chunk":
            fresh = message.chunk.token_ids
            if not fresh:
                return
            self._streamed.extend(fresh)
            self._mark(len(fresh), now, started)
        else:
            # Its tokens are the whole answer again: they count only where nothing was streamed.
            self._final = message.complete
            if not self._streamed and self._final.output_token_ids:
                self._mark(1, now, started)

    def finish(self, expected: int) -> None:
        """Settle the outcome of a stream that ended well as far as gRPC knows."""
        outcome, final = self._outcome, self._final
        if final is None:
            outcome.code = "INCOMPLETE"
            return
        tokens = list(final.output_token_ids)
        outcome.cached_tokens = final.cached_tokens
        outcome.output_tokens = len(self._streamed) or len(tokens)
        if final.finish_reason == "error":
            outcome.code = "ENGINE_ERROR"
        elif self._streamed and self._streamed != tokens:
            outcome.code = "TOKEN_MISMATCH"
        elif outcome.output_tokens != expected:
            outcome.code = "WRONG_LENGTH"
            outcome.reason = f"{outcome.output_tokens} tokens, not {expected}"

    def _mark(self, count: int, now: float, started: float) -> None:
        outcome = self._outcome
        if outcome.ttft_ms is None:
            outcome.ttft_ms = (now - started) * 1e3
        elif count == 1:
            outcome.itl_ms.append((now - self._last) * 1e3)
        else:
            outcome.itl_ms.extend([(now - self._last) * 1e3 / count] * count)
        self._last = now


def encode_generate(
    request_id: str,
    tokens: NDArray[np.uint32],
    max_tokens: int,
    *,
    streaming: bool = True,
    tenant: str = "",
) -> bytes:
    """A GenerateRequest as clients of this protocol send it, with exactly `max_tokens` to come; of
    a tenant whose cache namespace is its own."""
    request: bytes = pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_token_ids=tokens.tolist()),
        sampling_config=pb.SamplingConfig(beam_width=1, num_return_sequences=1, temperature=1.0),
        output_config=pb.OutputConfig(exclude_input_from_output=True),
        max_tokens=max_tokens,
        streaming=streaming,
        ignore_eos=True,
        cache_salt_id=xxh3_64_intdigest(tenant.encode()) >> 1 if tenant else None,
    ).SerializeToString()
    return request


def _worker_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Who a router says has answered: "ID", or "ID/RANK" where it names a data-parallel rank."""
    named = dict(metadata or ())
    worker, rank = named.get(WORKER_ID_KEY), named.get(DP_RANK_KEY, "0")
    if worker is None:
        return None
    return str(worker) if rank == "0" else f"{worker!s}/{rank!s}"


def _is_rejection(code: grpc.StatusCode, reason: str) -> bool:
    """Whether the request was refused because of overload, rather than failed."""
    return code == grpc.StatusCode.RESOURCE_EXHAUSTED or (
        code == grpc.StatusCode.UNAVAILABLE and "overload" in reason.lower()
    )
