"""Which engines can hand prompts over to each other, and why others cannot. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from ..engine_facts import EngineFacts
from .connectors import CONNECTORS, Connector, connector_name

ROLES = ("prefill", "decode")


class Half(NamedTuple):
    """A worker that takes one leg."""

    name: str
    """what reasons call it: its address"""
    dialect: str
    facts: EngineFacts


class Fit(NamedTuple):
    """What two pools of workers have in common."""

    connector: Connector | None
    """None: no prompt goes from the one to the other"""
    refusal: str = ""
    """why"""


def fit(prefill: Iterable[Half], decode: Iterable[Half]) -> Fit | None:
    """What workers of both halves have in common, that any two of them can be a pair; None while
    one half is empty."""
    sources, targets = list(prefill), list(decode)
    if not sources or not targets:
        return None
    found = {_name(source, target) for source in sources for target in targets}
    if len(found) > 1:
        return Fit(None, f"workers hand over by {' and by '.join(sorted(found))}")
    (name,) = found
    connector = CONNECTORS.get((sources[0].dialect, name))
    refusal = _refusal(connector, name, sources, targets)
    return Fit(connector) if refusal is None else Fit(None, refusal)


def _name(source: Half, target: Half) -> str:
    """The connector of two: one that does not say takes the other's."""
    stated = source.facts.transfer.connector or target.facts.transfer.connector
    return stated or connector_name(source.dialect, source.facts.transfer)


def _refusal(
    connector: Connector | None, name: str, sources: list[Half], targets: list[Half]
) -> str | None:
    for half, role in ((sources, "prefill"), (targets, "decode")):
        for each in half:
            other = each.facts.transfer.role
            if other in ROLES and other != role:
                return f"{each.name} is a {other} worker, not a {role} worker"
    for target in targets:
        for source in sources:
            if source.dialect != target.dialect:
                return (
                    f"prefill worker {source.name} speaks {source.dialect}, decode worker"
                    f" {target.name} {target.dialect}"
                )
            stated = target.facts.transfer.connector
            if stated and stated != name:
                return f"{source.name} hands over by {name}, {target.name} by {stated}"
            what = _differs(source.facts, target.facts)
            if what is not None:
                field, one, two = what
                return f"{field} of {source.name} is {one}, of {target.name} {two}"
    if connector is None:
        return f"workers that speak {sources[0].dialect} hand nothing over by {name}"
    for source in sources:
        transfer = source.facts.transfer
        if connector.needs_address and not (transfer.host and transfer.port):
            return f"prefill worker {source.name} states no address of its side channel"
        if connector.needs_ids and not transfer.engine_ids:
            return f"prefill worker {source.name} states no engine id"
    return None


def _differs(one: EngineFacts, two: EngineFacts) -> tuple[str, object, object] | None:
    """(what, of the one, of the other) that keeps their caches from fitting; None: nothing known.

    Tensor parallel layouts fit where one divides the other: then each rank reads from, or writes
    to, whole ranks."""
    sizes = one.transfer.block_size, two.transfer.block_size
    if all(sizes) and sizes[0] != sizes[1]:
        return "the block size", *sizes
    words = {
        "the build": (one.version, two.version),
        "the type of the KV cache": (one.transfer.cache_type, two.transfer.cache_type),
        "the pairing protocol": (one.transfer.pairing, two.transfer.pairing),
    }
    for what, both in words.items():
        if all(both) and both[0] != both[1]:
            return what, *both
    tensor = one.tensor_parallel_size, two.tensor_parallel_size
    if all(tensor) and max(tensor) % min(tensor):
        return "the tensor parallel size", *tensor
    pipeline = one.pipeline_parallel_size, two.pipeline_parallel_size
    if all(pipeline) and pipeline[0] != pipeline[1]:
        return "the pipeline parallel size", *pipeline
    return None
