"""Which endpoint stands for which worker, in the text that Envoy knows it by: IP:PORT."""

from collections.abc import Collection, Iterator

from ...base.errors import WorkerError
from ...router.kv_router import KvRouter
from ...server.handoff import PrefillLeg
from ...workers.dialects import EngineClient
from ...workers.registry import WorkerEntry
from ...workers.worker_url import OPENAI

INSTANCE_KEY, RANK_KEY = "x-dynamo-worker-instance-id", "x-dynamo-dp-rank"
"""Headers by which Dynamo's frontend beside a worker is given the worker, in its direct mode."""
PREFILL_INSTANCE_KEY, PREFILL_RANK_KEY = (
    "x-dynamo-prefill-instance-id",
    "x-dynamo-prefill-dp-rank",
)
ROUTING_MODE_KEY = "x-dynamo-routing-mode"
"""Likewise the worker that is to compute the prompt, and whether there is one."""
PREFILLER = "x-prefiller-host-port"
"""The header by which llm-d's side-car of a decode worker is given the prefill worker."""
DP_RANK_HEADER = "x-data-parallel-rank"
"""The header by which vLLM and SGLang are given a rank."""


class Endpoints:
    """Of the workers of one router. Those that speak OpenAI's HTTP are endpoints themselves; of
    others a frontend at `port` of their host is."""

    def __init__(self, router: KvRouter, port: int | None) -> None:
        self._registry = router.registry
        self._port = port

    def of_client(self, client: EngineClient) -> str:
        return self._of(client.address, client.dialect)

    def of_worker(self, worker_id: int) -> str:
        """Empty if there is no such worker, or no address of its that Envoy could call."""
        entry = self._registry.entry(worker_id)
        return "" if entry is None else self._of_entry(entry)

    def headers_for(
        self, worker_id: int, dp_rank: int, prefill: PrefillLeg | None = None
    ) -> dict[str, str]:
        """What the endpoint gets beside the request. `prefill`: where its prompt is computed, if
        not there."""
        entry = self._registry.entry(worker_id)
        if entry is None:
            return {}
        if entry.dialect != OPENAI:
            found = {
                INSTANCE_KEY: str(worker_id),
                RANK_KEY: str(dp_rank),
                ROUTING_MODE_KEY: "aggregated",
            }
            if prefill is not None:
                found[ROUTING_MODE_KEY] = "disaggregated"
                found[PREFILL_INSTANCE_KEY] = str(prefill.worker_id)
                found[PREFILL_RANK_KEY] = str(prefill.decision.worker.dp_rank)
            return found
        found = {DP_RANK_HEADER: str(dp_rank)} if entry.dp_size > 1 else {}
        return found if prefill is None else {**found, PREFILLER: prefill.address}

    def is_worker(self, worker_id: int) -> bool:
        """Whether its endpoint is the worker itself; else it is a frontend of Dynamo's, which calls
        the worker that it is given, whichever frontend it is."""
        entry = self._registry.entry(worker_id)
        return entry is not None and entry.dialect == OPENAI

    def workers_at(self, endpoints: Collection[str]) -> Iterator[int]:
        """Ids of the workers at these endpoints; one without a port stands for all of its host."""
        for entry in self._registry.entries():
            endpoint = self._of_entry(entry)
            if endpoint and not {endpoint, host_of(endpoint)}.isdisjoint(endpoints):
                yield entry.worker_id

    def _of_entry(self, entry: WorkerEntry) -> str:
        return "" if entry.address is None else self._of(entry.address, entry.dialect)

    def _of(self, address: str, dialect: str) -> str:
        if dialect == OPENAI:
            return address
        if self._port is None:
            return ""
        return f"{address.rpartition(':')[0]}:{self._port}"


def no_endpoint(worker_id: int | None, *, role: str = "worker") -> WorkerError:
    """Envoy cannot be sent to a worker. Its client reads this: no worker is named in the text."""
    return WorkerError(f"the {role} has no address that Envoy could call", worker_id=worker_id)


def host_of(endpoint: str) -> str:
    """Without its port, and without the brackets of IPv6."""
    return endpoint.rpartition(":")[0].strip("[]")
