"""What the URL of a worker states of its hand-offs, beside what its engine says."""

from dataclasses import replace

from ...base.urls import joined
from ..channels import ConnectionPolicy
from ..engine_facts import EngineFacts
from ..failures import EngineCallError, Origin
from ..transfer_facts import MOONCAKE, TransferFacts
from .engine_http import UNTOLD, EngineHttp
from .openai_facts import mooncake_ids


async def with_stated(
    facts: EngineFacts,
    stated: TransferFacts,
    parallel: tuple[int, int],
    policy: ConnectionPolicy,
    *,
    timeout: float,
) -> EngineFacts:
    """The facts of an engine and what its URL states. The latter's connector goes before its own;
    its parallel sizes count where the engine gives none.

    The bootstrap server of a MooncakeConnector is asked for the ids of the engine. EngineCallError
    or WorkerError if it does not answer as one.
    """
    tensor, pipeline = parallel
    facts = replace(
        facts,
        tensor_parallel_size=facts.tensor_parallel_size or tensor,
        pipeline_parallel_size=facts.pipeline_parallel_size or pipeline,
    )
    transfer = stated if stated.connector else facts.transfer
    if stated.connector and stated.connector == facts.transfer.connector:
        known = facts.transfer
        ids = stated.engine_ids or known.engine_ids
        transfer = replace(known, host=stated.host, port=stated.port, engine_ids=ids)
    if transfer.connector == MOONCAKE:
        bootstrap = EngineHttp(joined(transfer.host, transfer.port), policy)
        try:
            answer = await bootstrap.ask("GET", "/query", timeout=timeout)
            transfer = replace(transfer, engine_ids=mooncake_ids(answer))
        except EngineCallError as error:
            # A decode worker has none; a prefill worker without is refused by name.
            if error.origin is Origin.ENGINE and error.code() not in UNTOLD:
                raise
        finally:
            await bootstrap.close()
    return replace(facts, transfer=transfer)
