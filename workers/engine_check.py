"""Whether an engine belongs in the fleet, by what it says of itself. Pure."""

from collections import Counter
from collections.abc import Iterable

from .engine_facts import EngineFacts
from .engine_table import WatchedEngine
from .trtllm_client import EngineIdentity
from .worker_url import TRTLLM


def why_refused(
    engine: WatchedEngine,
    identity: EngineIdentity,
    facts: EngineFacts,
    *,
    dp_size: int,
    block_size: int,
    model: str,
) -> str | None:
    """Why an engine is not taken in; None if it is.

    `dp_size` is how many ranks it has, `block_size` the router's, `model` the one that the fleet
    serves, empty if any will do.
    """
    stated = engine.url.transfer.connector
    if stated and engine.client.dialect == TRTLLM:
        return f"handoff={stated} of its URL is nothing that TensorRT-LLM's gRPC server knows"
    their_size = facts.settings.get("kv_block_size", block_size)
    if their_size != block_size:
        return f"its KV block size is {their_size}, the router's is {block_size}"
    publishers = len(identity.publisher_ids or ())
    if publishers not in (0, dp_size):
        return f"the worker announces {publishers} publishers of KV events for {dp_size} ranks"
    if model and facts.model_id and facts.model_id != model:
        return f"its model is {facts.model_id!r}, others' {model!r}"
    return None


def usual_model(engines: Iterable[WatchedEngine], newcomer: WatchedEngine) -> str:
    """The model of most engines that answer; of those there are as many of, one that is served.

    The first engines of a fleet may be the odd ones: the others correct that as they come.
    """
    votes: Counter[str] = Counter()
    for engine in engines:
        if engine.facts.model_id and (engine is newcomer or not engine.tracker.failed_probes):
            # A tie is for what is served now.
            votes[engine.facts.model_id] += 2 + engine.is_ready
    most = max(votes.values(), default=0)
    return next((model for model, count in votes.items() if count == most), "")
