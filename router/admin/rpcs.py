"""The admin calls over gRPC: AddWorker, DrainWorker, RemoveWorker, SetWorkerWeight."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from ..proto import router_pb2 as pb
from .worker_admin import AdminError, WorkerAdmin, WorkerStatus

Context = aio.ServicerContext[Any, Any]


class WorkerRpcs:
    """The part of RouterService that changes workers; UNIMPLEMENTED without an admin."""

    def __init__(self, admin: WorkerAdmin | None) -> None:
        self._admin = admin

    async def AddWorker(self, request: pb.AddWorkerRequest, context: Context) -> pb.WorkerChange:
        weight = request.weight if request.HasField("weight") else None

        async def add(admin: WorkerAdmin) -> WorkerStatus:
            return (await admin.add(request.url, weight))[0]

        return await self._answer(context, add)

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: Context
    ) -> pb.WorkerChange:
        deadline_s = request.deadline_s if request.HasField("deadline_s") else None
        name = str(request.worker_id)
        return await self._answer(context, lambda admin: admin.drain(name, deadline_s))

    async def RemoveWorker(
        self, request: pb.RemoveWorkerRequest, context: Context
    ) -> pb.WorkerChange:
        name = str(request.worker_id)
        return await self._answer(context, lambda admin: admin.remove(name, force=request.force))

    async def SetWorkerWeight(
        self, request: pb.SetWorkerWeightRequest, context: Context
    ) -> pb.WorkerChange:
        async def change(admin: WorkerAdmin) -> WorkerStatus:
            return admin.set_weight(str(request.worker_id), request.weight)

        return await self._answer(context, change)

    async def _answer(
        self, context: Context, call: Callable[[WorkerAdmin], Awaitable[WorkerStatus]]
    ) -> pb.WorkerChange:
        try:
            if self._admin is None:
                text = "this router's workers are not changed by calls"
                raise AdminError(grpc.StatusCode.UNIMPLEMENTED, text)
            status = await call(self._admin)
        except AdminError as error:
            await context.abort(error.code, str(error))
            raise AssertionError("context.abort returned") from None
        return pb.WorkerChange(
            worker_id=status.worker_id,
            address=status.address,
            state=status.state,
            weight=status.weight,
            in_flight=status.in_flight,
            reason=status.reason,
            warning=status.warning,
        )
