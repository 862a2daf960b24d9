"""Where one of Dynamo's workers is called."""

from dataclasses import dataclass, field

from .engine_facts import EngineFacts


@dataclass(frozen=True, slots=True)
class DynamoRoute:
    """How an instance is called, and what its registration says of it."""

    transport: str
    address: str
    codec: str
    worker_id: int
    facts: EngineFacts = field(default_factory=EngineFacts)
    dp_size: int = 1
    dp_start: int = 0
    publisher_ids: tuple[int, ...] = ()
    """of its KV events, one for each rank; empty: not all are known"""
