"""An engine process that stands still: its connection stays, and nothing comes any more."""

import re
import signal
from contextlib import suppress
from pathlib import Path

import grpc
from grpc import aio
from support.fake_engine import FakeEngine, prompt
from support.polling import until
from support.processes import command
from support.rig import BLOCK, Rig, first

from dynamo_router.workers.channels import ConnectionPolicy
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.registry import WorkerState

EAGER = HealthPolicy(probe_interval_s=0.3, probe_timeout_s=3.0, retry_most_s=0.3)
SHORT = ConnectionPolicy(keepalive_s=1.0, keepalive_timeout_s=3.0)


async def test_requests_without_a_token_move_and_streams_end(tmp_path: Path) -> None:
    words = ("mocker", "--workers", "1", "--block-size", str(BLOCK), "--port", "0")
    async with command(tmp_path, *words) as mocker:
        await mocker.says("ready")
        found = re.search(r"grpc://([\d.:]+)", mocker.text)
        assert found is not None
        good = FakeEngine()
        good.model.model_id = "mock-model"
        async with Rig(good, policy=EAGER, connection=SHORT) as rig:
            rig.monitor.add(f"{found[0]}?id=77")
            registry = rig.registry
            await until(lambda: len(rig.monitor.ready_clients()) == 2)
            (frozen,) = [e for e in rig.entries if e.address == found[1]]
            pinned = (("x-dynamo-worker-instance-id", str(frozen.worker_id)),)
            request = prompt("stream")
            request.max_tokens = 5000
            stream = rig.call(request, metadata=pinned)
            await first(stream)
            mocker.send(signal.SIGSTOP)
            for number in range(4):  # every other one goes to the engine that stands still
                assert len(await rig.answers(prompt(f"r{number}"))) == 3
            assert len(good.requests) == 4
            assert rig.monitor.reports.errors[frozen.worker_id, "worker_down"] >= 1
            await until(lambda: registry.entry(frozen.worker_id).state is WorkerState.UNHEALTHY)
            with suppress(aio.AioRpcError):
                while await stream.read() is not aio.EOF:
                    pass
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE
            assert "in mid-stream" in (await stream.details() or "")
            await rig.settled()
            mocker.send(signal.SIGCONT)
            await until(lambda: registry.entry(frozen.worker_id).state is WorkerState.READY)
