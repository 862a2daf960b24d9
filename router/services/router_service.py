"""Selection over gRPC: dynamo_router.v1.RouterService, documented in proto/router.proto."""

import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
from grpc import aio

from ...runtime.errors import InvalidRequestError, RouterError
from ...runtime.identity import WorkerWithDpRank
from ..access import current_caller, selection_id
from ..admin import WorkerAdmin, WorkerRpcs
from ..dispatch import status_of
from ..kv_router import KvRouter
from ..policy import CandidateTerms, Decision
from ..prompt import Prompt
from ..proto import router_pb2 as pb
from ..views import WorkerView

SERVICE = "dynamo_router.v1.RouterService"

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")


class RouterService(WorkerRpcs):
    """Answers from one KvRouter, on the event loop: no method here waits for anything."""

    def __init__(self, router: KvRouter, admin: WorkerAdmin | None = None) -> None:
        super().__init__(admin)
        self._router = router

    async def SelectWorker(
        self, request: pb.SelectWorkerRequest, context: Context
    ) -> pb.SelectWorkerResponse:
        decision = await _or_abort(context, lambda: self._select(request))
        entry = self._router.registry.entry(decision.worker.worker_id)
        return pb.SelectWorkerResponse(
            worker=_worker(decision.worker),
            address=(entry.address if entry is not None else None) or "",
            overlap_blocks=decision.overlap_blocks,
            request_blocks=decision.request_blocks,
            cached_tokens=decision.cached_tokens,
            booked=decision.request_id is not None,
            host_overlap_blocks=decision.host_overlap_blocks,
            disk_overlap_blocks=decision.disk_overlap_blocks,
        )

    def _select(self, request: pb.SelectWorkerRequest) -> Decision:
        tokens_out = request.HasField("expected_output_tokens")
        try:
            return self._router.decide(
                self._prompt(request),
                _booking(request.request_id) if request.request_id else None,
                allowed_workers=list(request.allowed_worker_ids) or None,
                pinned_worker=_pinned(request),
                expected_output_tokens=request.expected_output_tokens if tokens_out else None,
            )
        except InvalidRequestError as error:
            if error.field != "request_id":
                raise
            text = f"request id {request.request_id!r} is in use"  # as its caller knows it
            raise InvalidRequestError(text, field="request_id") from None

    async def GetOverlapScores(
        self, request: pb.OverlapRequest, context: Context
    ) -> pb.OverlapResponse:
        scores = await _or_abort(
            context,
            lambda: self._router.tier_overlaps(self._prompt(request)),
        )
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
        self, request: pb.PotentialLoadsRequest, context: Context
    ) -> pb.PotentialLoadsResponse:
        loads = await _or_abort(
            context,
            lambda: self._router.potential_loads(self._prompt(request)),
        )
        return pb.PotentialLoadsResponse(
            loads=[
                pb.PotentialLoadsResponse.PotentialLoad(
                    worker=_worker(load.worker),
                    decode_blocks=load.potential_decode_blocks,
                    prefill_tokens=load.potential_prefill_tokens,
                )
                for load in loads
            ]
        )

    async def MarkPrefillComplete(
        self, request: pb.BookedRequest, context: Context
    ) -> pb.BookingResponse:
        return pb.BookingResponse(
            known=self._router.mark_prefill_complete(_booking(request.request_id))
        )

    async def Free(self, request: pb.BookedRequest, context: Context) -> pb.BookingResponse:
        return pb.BookingResponse(known=self._router.free(_booking(request.request_id)))

    async def ListWorkers(
        self, request: pb.ListWorkersRequest, context: Context
    ) -> pb.ListWorkersResponse:
        return pb.ListWorkersResponse(workers=map(_status, self._router.workers()))

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        explanation = await _or_abort(
            context,
            lambda: self._router.explain(self._prompt(request)),
        )
        return pb.ExplainResponse(
            cheapest=map(_worker, explanation.cheapest),
            candidates=map(_candidate, explanation.candidates),
            json=json.dumps(explanation.to_dict()),
        )

    def _prompt(
        self,
        request: pb.SelectWorkerRequest
        | pb.OverlapRequest
        | pb.PotentialLoadsRequest
        | pb.ExplainRequest,
    ) -> Prompt:
        return self._router.prompt(
            np.array(request.token_ids, dtype=np.uint32),
            lora_name=request.lora_name or None,
            cache_namespace=request.cache_namespace or None,
        )


async def _or_abort(context: Context, call: Callable[[], T]) -> T:
    """The result of a call into the router; its errors become the status of the RPC."""
    try:
        return call()
    except RouterError as error:
        await _abort(context, error)


async def _abort(context: Context, error: RouterError) -> NoReturn:
    code, details = status_of(error)
    await context.abort(code, details)
    raise AssertionError("context.abort returned")


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
