"""Dynamo's own client reads what VirtualKeys writes, from a real etcd.

Set DYNAMO_PEER to a Python that has ai-dynamo-runtime 1.6.1; the keys by themselves are tested
always (tests/unit/planner/connectors/test_virtual.py).
"""

import asyncio
import os
from pathlib import Path

import pytest
from support.polling import until
from support.servers.etcd import EtcdServer

from dynamo_router.base.clock import SystemClock
from dynamo_router.planner.connectors import VirtualKeys
from dynamo_router.process.child_process import ChildProcess
from dynamo_router.runtime.kv_stores import EtcdConfig, EtcdStore

PEER = os.environ.get("DYNAMO_PEER")
pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")

CLIENT = """
import asyncio
from dynamo._core import DistributedRuntime, VirtualConnectorClient
async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "etcd", "tcp")
    client = VirtualConnectorClient(runtime, "dynamo")
    print("ready", flush=True)
    while True:
        await client.wait()
        event = await client.get()
        print(event.num_prefill_workers, event.num_decode_workers, event.decision_id, flush=True)
        await client.complete(event)
asyncio.run(main())
"""


async def test_dynamo_s_client_reads_and_completes_our_decisions(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path)
    etcd.start()
    store = EtcdStore(EtcdConfig((etcd.url,)))
    environ = {"ETCD_ENDPOINTS": etcd.url, "DYN_TCP_RPC_HOST": "127.0.0.1"}
    client = ChildProcess(
        [str(PEER), "-c", CLIENT], stop_timeout_s=10.0, own_session=True, env=environ
    )
    try:
        await client.start(lambda line: line == "ready", 60.0)
        keys = VirtualKeys(store, "dynamo", "decode", SystemClock())
        bucket = store.bucket("v1/dynamo/planner")
        for number, (prefill, decode) in enumerate(((2, 3), (1, 4))):

            async def is_scaled(number: int = number) -> bool:
                entry = await bucket.get("scaled_decision_id")
                return entry is not None and entry.value == str(number).encode()

            await keys.apply({"prefill": prefill, "decode": decode}, {})
            await until(is_scaled)
            assert f"{prefill} {decode} {number}" in client.output
    finally:
        await client.stop()
        await store.close()
        await asyncio.to_thread(etcd.kill)
