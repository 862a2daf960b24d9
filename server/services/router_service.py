"""Selection over gRPC: dynamo_router.v1.RouterService, documented in proto/router.proto."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE_MESSAGE, InvalidRequestError, RouterError
from ...base.identity import WorkerWithDpRank
from ...router.admission import NO_OBJECTIVES, Objectives, read_objectives
from ...router.affinity import Session, read_session
from ...router.kv_router import KvRouter
from ...router.placement import Placement
from ...router.policy import CandidateTerms, Decision
from ...router.prompt import Prompt
from ...router.proto import router_pb2 as pb
from ...router.steps import by_steps
from ...router.views import PotentialLoad, WorkerView
from ...transport.grpc_methods import AnswerAtOnce, Metadata, Method, Methods
from ...transport.http2 import ServerCall
from ..access import current_account, current_caller, selection_id
from ..admin import WorkerChanges, WorkerRpcs
from ..dispatch import LONG_BYTES, RequestReader, retry_metadata, status_of
from ..loop_share import answer_share, finish_in_turns, in_turns, made_in_turns
from ._selection import write_selection

SERVICE = "dynamo_router.v1.RouterService"
SHORT_BYTES = LONG_BYTES // 4
"""The tokens of a request that is not longer are not many either, if each took a byte."""
_KNOWN = [pb.BookingResponse(known=known).SerializeToString() for known in (False, True)]


BookedElsewhere = Callable[[str, str], Awaitable[bool]]
"""Frees a booking ("free") or notes its first token ("prefilled") in another process; whether one
has it."""


class RouterService(WorkerRpcs):
    """Answers from one KvRouter, on the event loop.

    A method that takes a prompt is given its request without the token ids, and the prompt.
    """

    def __init__(
        self,
        router: KvRouter,
        reader: RequestReader,
        admin: WorkerChanges | None = None,
        booked_elsewhere: BookedElsewhere | None = None,
    ) -> None:
        """`booked_elsewhere` is asked about bookings that are not known here."""
        super().__init__(admin)
        self._booked_elsewhere = booked_elsewhere
        self._router = router
        self._reader = reader
        self._share = answer_share()
        self._prompt_methods: dict[str, _AskedMethod] = {}
        self._at_once: dict[str, AnswerAtOnce] = {
            "SelectWorker": self._select_at_once,
            "MarkPrefillComplete": partial(self._booked_at_once, router.mark_prefill_complete),
            "Free": partial(self._booked_at_once, router.free),
        }
        service = pb.DESCRIPTOR.services_by_name["RouterService"]
        self.methods: Methods = {
            f"/{SERVICE}/{each.name}": self._method(each) for each in service.methods
        }

    def _method(self, method: Any) -> Method:
        request, answer = getattr(pb, method.input_type.name), getattr(self, method.name)
        at_once = self._at_once.get(method.name)
        decode, fields = request.FromString, request.DESCRIPTOR.fields_by_name
        if "token_ids" in fields:
            asked = _AskedMethod(answer, request, request(), "request_id" in fields)
            self._prompt_methods[method.name] = asked
            decode, answer = None, partial(self._with_prompt, asked)
        encode = None if method.name == "SelectWorker" else _serialize
        return Method(answer, decode, encode, at_once=at_once)

    async def _with_prompt(self, about: "_AskedMethod", body: bytes, context: ServerCall) -> Any:
        """The answer of a method, given the prompt and the other fields of its request; errors of
        the router become the status of the RPC."""
        method, kind = about.method, about.kind
        try:
            tokens, rest = await self._reader.tokens(body)
            request = self._decoded(about, rest)
            asked, session = _asked(context.invocation_metadata())
            prompt = await self._reader.prompt(tokens, request.lora_name, request.cache_namespace)
            if kind is pb.ExplainRequest:
                return await method(request, prompt, asked, session)
            if kind is pb.SelectWorkerRequest:
                return await method(request, prompt, session)
            return await method(request, prompt)
        except RouterError as error:
            await _abort(context, error)

    def _select_at_once(self, body: bytes, metadata: Metadata) -> bytes | None:
        """SelectWorker, of a prompt that is not long."""
        found = self._reader.tokens_at_once(body) if len(body) <= SHORT_BYTES else None
        if found is None:
            return None
        tokens, rest = found
        request = self._decoded(self._prompt_methods["SelectWorker"], rest)
        _, session = _asked(metadata)
        prompt = self._reader.prompt_at_once(tokens, request.lora_name, request.cache_namespace)
        return self._selected(request, prompt, session)

    def _decoded(self, about: "_AskedMethod", rest: bytes) -> Any:
        """The fields of a request that are no tokens."""
        if not rest:
            return about.blank
        try:
            request = about.kind.FromString(rest)
        except DecodeError:
            raise InvalidRequestError(UNREADABLE_MESSAGE) from None
        if about.has_id:
            self._reader.check_name("request_id", request.request_id)
        return request

    async def SelectWorker(
        self, request: pb.SelectWorkerRequest, prompt: Prompt, session: Session | None
    ) -> bytes:
        return self._selected(request, prompt, session)

    def _selected(
        self, request: pb.SelectWorkerRequest, prompt: Prompt, session: Session | None
    ) -> bytes:
        """A serialized SelectWorkerResponse."""
        decision = self._select(request, prompt, session)
        if request.request_id and decision.request_id is None:
            self._reader.hits.hit("router_max_booked_blocks")
        entry = self._router.registry.entry(decision.worker.worker_id)
        return write_selection(
            *decision.worker,
            (entry.address if entry is not None else None) or "",
            decision.overlap_blocks,
            decision.request_blocks,
            decision.cached_tokens,
            decision.request_id is not None,
            decision.host_overlap_blocks,
            decision.disk_overlap_blocks,
        )

    def _select(
        self, request: pb.SelectWorkerRequest, prompt: Prompt, session: Session | None
    ) -> Decision:
        if request is self._prompt_methods["SelectWorker"].blank and session is None:
            return self._router.place(Placement(prompt))
        tokens_out = request.HasField("expected_output_tokens")
        placement = Placement(
            prompt,
            _booking(request.request_id) if request.request_id else "",
            pinned=_pinned(request),
            allowed=tuple(request.allowed_worker_ids),
            session=session,
            in_flight=False,
            expected_output_tokens=request.expected_output_tokens if tokens_out else None,
            owner=current_account(),
        )
        try:
            return self._router.place(placement)
        except InvalidRequestError as error:
            if error.field != "request_id":
                raise
            text = f"request id {request.request_id!r} is in use"  # as its caller knows it
            raise InvalidRequestError(text, field="request_id") from None

    async def GetOverlapScores(
        self, request: pb.OverlapRequest, prompt: Prompt
    ) -> pb.OverlapResponse:
        scores = self._router.tier_overlaps(prompt)
        return pb.OverlapResponse(
            overlaps=[
                pb.OverlapResponse.Overlap(
                    worker=_worker(worker),
                    blocks=found.device,
                    host_blocks=found.host_pinned,
                    disk_blocks=found.disk,
                    external_blocks=found.external,
                )
                for worker, found in sorted(scores.items())
            ],
            block_size=self._router.block_size,
        )

    async def GetPotentialLoads(
        self, request: pb.PotentialLoadsRequest, prompt: Prompt
    ) -> pb.PotentialLoadsResponse:
        loads = self._router.potential_loads(prompt)
        return pb.PotentialLoadsResponse(loads=await made_in_turns(_load, loads, self._share))

    async def MarkPrefillComplete(
        self, request: pb.BookedRequest, context: ServerCall
    ) -> pb.BookingResponse:
        booking = _booking(request.request_id)
        known = self._router.mark_prefill_complete(booking)
        return await self._known("prefilled", booking, known)

    async def Free(self, request: pb.BookedRequest, context: ServerCall) -> pb.BookingResponse:
        booking = _booking(request.request_id)
        return await self._known("free", booking, self._router.free(booking))

    async def _known(self, action: str, booking: str, known: bool) -> pb.BookingResponse:
        """Whether a booking is known, here or elsewhere, where it is changed then."""
        if not known and self._booked_elsewhere is not None:
            known = await self._booked_elsewhere(action, booking)
        return pb.BookingResponse(known=known)

    def _booked_at_once(
        self, change: Callable[[str], bool], body: bytes, metadata: Metadata
    ) -> bytes | None:
        """MarkPrefillComplete or Free, of a booking that is known here."""
        if len(body) > SHORT_BYTES:
            return None
        try:
            request = pb.BookedRequest.FromString(body)
        except DecodeError:
            return None  # the decoder then reports what is wrong
        known = change(_booking(request.request_id))
        return _KNOWN[known] if known or self._booked_elsewhere is None else None

    async def ListWorkers(
        self, request: pb.ListWorkersRequest, context: ServerCall
    ) -> pb.ListWorkersResponse:
        answer = pb.ListWorkersResponse()
        async for views in in_turns(self._router.workers_in_steps(), self._share):
            answer.workers.extend(map(_status, views))
        return answer

    async def Explain(
        self,
        request: pb.ExplainRequest,
        prompt: Prompt,
        asked: Objectives,
        session: Session | None,
    ) -> pb.ExplainResponse:
        bound = self._router.sessions.wanted(session)
        steps = self._router.explain_steps(prompt, asked=asked, bound=bound)
        explanation = await finish_in_turns(steps, self._share)
        answer = pb.ExplainResponse(cheapest=map(_worker, explanation.cheapest))
        rows = []
        async for some in in_turns(by_steps(explanation.candidates), self._share):
            answer.candidates.extend(map(_candidate, some))
            rows.append(msgspec.json.encode([row.to_dict() for row in some])[1:-1])
        # Its last field is the empty list of candidates.
        head = msgspec.json.encode(explanation.to_dict([])).removesuffix(b"]}")
        answer.json = b"".join((head, b",".join(rows), b"]}")).decode()
        return answer


class _AskedMethod(NamedTuple):
    """A method that takes a prompt, and what its requests are."""

    method: Any
    kind: Any
    blank: Any
    """a request of nothing but a prompt; not to be changed"""
    has_id: bool


def _asked(metadata: Metadata) -> tuple[Objectives, Session | None]:
    """What metadata ask for."""
    if not metadata:
        return NO_OBJECTIVES, None
    session = read_session(metadata, current_caller().name, current_account())
    return read_objectives(metadata), session


def _serialize(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return body


async def _abort(context: ServerCall, error: RouterError) -> NoReturn:
    await context.abort(*status_of(error), retry_metadata(error))


def _booking(request_id: str) -> str:
    """What a booking of this call's caller is called in the router."""
    return selection_id(current_caller(), request_id)


def _pinned(request: pb.SelectWorkerRequest) -> WorkerWithDpRank | None:
    if not request.HasField("pinned_worker"):
        return None
    return WorkerWithDpRank(request.pinned_worker.worker_id, request.pinned_worker.dp_rank)


def _worker(worker: WorkerWithDpRank) -> pb.Worker:
    return pb.Worker(worker_id=worker.worker_id, dp_rank=worker.dp_rank)


def _status(view: WorkerView) -> pb.WorkerStatus:
    host, disk, external = view.lower_tier_blocks
    return pb.WorkerStatus(
        worker=_worker(view.worker),
        address=view.address or "",
        state=view.state,
        reason=view.reason,
        indexed_blocks=view.indexed_blocks,
        active_blocks=view.active_blocks,
        active_prefill_tokens=view.active_prefill_tokens,
        active_requests=view.active_requests,
        event_source_state=view.event_source_state,
        host_blocks=host,
        disk_blocks=disk,
        external_blocks=external,
        weight=view.weight,
    )


def _load(load: PotentialLoad) -> pb.PotentialLoadsResponse.PotentialLoad:
    return pb.PotentialLoadsResponse.PotentialLoad(
        worker=_worker(load.worker),
        decode_blocks=load.potential_decode_blocks,
        prefill_tokens=load.potential_prefill_tokens,
    )


def _candidate(terms: CandidateTerms) -> pb.Candidate:
    return pb.Candidate(
        worker=_worker(terms.worker),
        cost=terms.cost,
        overlap_blocks=terms.overlap_blocks,
        prefill_blocks=terms.raw_prefill_blocks,
        effective_overlap_blocks=terms.effective_overlap_blocks,
        decode_blocks=terms.decode_blocks,
        active_requests=terms.active_requests,
        eligible=terms.eligible,
        reason=terms.reason,
        event_source_state=terms.index_state,
        host_overlap_blocks=terms.host_overlap_blocks,
        disk_overlap_blocks=terms.disk_overlap_blocks,
        dynamo_cost=terms.dynamo_cost,
        policy_terms=terms.policy_terms,
    )
