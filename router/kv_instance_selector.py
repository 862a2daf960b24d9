"""KvRouter as what chooses the instances of a runtime's client: its mode `kv`."""

from collections.abc import Collection, Mapping
from typing import Any

from ..base.errors import InvalidRequestError
from ..runtime.components import Selection
from .kv_router import KvRouter


class KvInstanceSelector:
    """Gives a Client the decisions of a KvRouter, and the router the client's instances.

    A request's body is a map with `token_ids`, and perhaps `lora_name` and `cache_namespace`. An
    instance is a worker of the router under the same id, with one rank unless the router knows
    better; where it has several, the body sent says which in `routing.dp_rank`.
    """

    def __init__(self, router: KvRouter) -> None:
        self._router = router
        self._known: set[int] = set()
        self._output_tokens: dict[str, int] = {}

    def select(
        self,
        request_id: str,
        body: object,
        instances: Collection[int],
        excluded: Collection[int],
    ) -> Selection:
        """See InstanceSelector.select."""
        self._follow(instances)
        if not isinstance(body, Mapping) or not isinstance(body.get("token_ids"), list | tuple):
            text = "mode kv needs a body with token_ids"
            raise InvalidRequestError(text, field="token_ids")
        content: dict[str, Any] = {
            name: body[name] for name in ("lora_name", "cache_namespace") if body.get(name)
        }
        decision = self._router.decide(
            body["token_ids"], request_id, excluded_workers=set(excluded), **content
        )
        self._output_tokens[request_id] = 0
        id, rank = decision.worker
        entry = self._router.registry.entry(id)
        if entry is not None and entry.dp_size > 1:
            body = {**body, "routing": {**(body.get("routing") or {}), "dp_rank": rank}}
        return Selection(id, body)

    def on_part(self, request_id: str, part: object) -> None:
        """See InstanceSelector.on_part: `token_ids` of a part are counted."""
        tokens = part.get("token_ids") if isinstance(part, Mapping) else None
        if not isinstance(tokens, list) or not tokens:
            return
        if not self._output_tokens[request_id]:
            self._router.mark_prefill_complete(request_id)
        self._output_tokens[request_id] += len(tokens)
        self._router.add_output_tokens(request_id, self._output_tokens[request_id])

    def release(self, request_id: str) -> None:
        """See InstanceSelector.release."""
        count = self._output_tokens.pop(request_id, 0)
        self._router.free(request_id, output_tokens=count or None)

    def _follow(self, instances: Collection[int]) -> None:
        """Let the router have the instances that there are; workers of others stay as they are."""
        if self._known == instances:
            return
        for id in self._known - set(instances):
            self._router.remove_worker(id)
        for id in set(instances) - self._known:
            if self._router.registry.entry(id) is None:
                self._router.add_worker(id)
        self._known = set(instances)
