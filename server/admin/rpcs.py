"""The admin calls over gRPC: AddWorker, DrainWorker, RemoveWorker, SetWorkerWeight."""

from collections.abc import Awaitable, Callable

from ...base.errors import StatusCode
from ...router.proto import router_pb2 as pb
from ...transport.http2 import ServerCall
from .worker_admin import AdminError, WorkerChanges, WorkerStatus


class WorkerRpcs:
    """The part of RouterService that changes workers; UNIMPLEMENTED without an admin."""

    def __init__(self, admin: WorkerChanges | None) -> None:
        self._admin = admin

    async def AddWorker(self, request: pb.AddWorkerRequest, context: ServerCall) -> pb.WorkerChange:
        weight = request.weight if request.HasField("weight") else None

        async def add(admin: WorkerChanges) -> WorkerStatus:
            return (await admin.add(request.url, weight))[0]

        return await self._answer(context, add)

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: ServerCall
    ) -> pb.WorkerChange:
        deadline_s = request.deadline_s if request.HasField("deadline_s") else None
        name = str(request.worker_id)
        return await self._answer(context, lambda admin: admin.drain(name, deadline_s))

    async def RemoveWorker(
        self, request: pb.RemoveWorkerRequest, context: ServerCall
    ) -> pb.WorkerChange:
        name = str(request.worker_id)
        return await self._answer(context, lambda admin: admin.remove(name, force=request.force))

    async def SetWorkerWeight(
        self, request: pb.SetWorkerWeightRequest, context: ServerCall
    ) -> pb.WorkerChange:
        async def change(admin: WorkerChanges) -> WorkerStatus:
            return await admin.set_weight(str(request.worker_id), request.weight)

        return await self._answer(context, change)

    async def _answer(
        self, context: ServerCall, call: Callable[[WorkerChanges], Awaitable[WorkerStatus]]
    ) -> pb.WorkerChange:
        try:
            if self._admin is None:
                text = "this router's workers are not changed by calls"
                raise AdminError(StatusCode.UNIMPLEMENTED, text)
            status = await call(self._admin)
        except AdminError as error:
            await context.abort(error.code, str(error))
        return pb.WorkerChange(
            worker_id=status.worker_id,
            address=status.address,
            state=status.state,
            weight=status.weight,
            in_flight=status.in_flight,
            reason=status.reason,
            warning=status.warning,
        )
