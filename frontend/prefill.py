"""Disaggregated serving: a prompt computed by a prefill worker, before a decode worker goes on.

A prefill that fails fails its request: who needs such workers cannot compute prompts himself.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..base.errors import WorkerError
from ..router.placement import Computed
from ..router.policy import Decision
from ..server.dispatch import Dispatcher
from ..workers.dialects import for_decode, for_prefill, handoff_of
from ..workers.trtllm_proto import pb
from .origin import Origin

PrefillWorkers = Callable[[], Dispatcher | None]
"""Through whom the next prompt is computed; None: by the worker that answers. NoWorkersError if it
cannot be computed now."""


class Prefilled(NamedTuple):
    """A prompt that was computed. `request` is what the decode worker gets; None: `messages` are
    the whole answer, which ended with its first token."""

    decision: Decision
    cached_tokens: int
    request: bytes | None
    messages: list[bytes]


async def prefill(
    workers: Dispatcher, request: bytes, origin: Origin, computed: Computed | None
) -> Prefilled:
    """Have the prompt of a serialized GenerateRequest computed.

    Raises what `Dispatcher.generate` raises, and WorkerError if nothing is handed over.
    """
    messages: list[bytes] = []

    async def keep(message: bytes) -> None:
        messages.append(message)

    decision = await origin.generate(workers, for_prefill(request), keep, computed=computed)
    said = [pb.GenerateResponse.FromString(message) for message in messages]
    cached = max(max(each.chunk.cached_tokens, each.complete.cached_tokens) for each in said)
    if said[-1].complete.finish_reason != "length":
        return Prefilled(decision, cached, None, messages)
    handoff = handoff_of(messages[-1])
    if handoff is None:
        worker_id = decision.worker.worker_id
        text = f"prefill worker {worker_id} handed nothing over: it serves no such requests"
        raise WorkerError(text, worker_id=worker_id)
    return Prefilled(decision, cached, for_decode(request, handoff), messages)
