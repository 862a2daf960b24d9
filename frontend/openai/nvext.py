"""Dynamo's extensions of a request, `nvext`: what of them can be had here.

As with Dynamo's own frontend an unknown field is an error; so is one that is known and
cannot be had.
"""

from array import array
from typing import Any, Literal

import msgspec

from ...router.affinity import SESSION_FINAL_KEY, SESSION_ID_KEY, SESSION_TIMEOUT_KEY
from .errors import ApiError

EXTRA_FIELDS = ("worker_id", "timing", "decision")
"""What an answer's `nvext` can have, if its request asks for it."""


class AgentHints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    priority: int | None = None
    strict_priority: int | None = None
    osl: int | None = None
    speculative_prefill: bool | None = None


class SessionControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The session of a request; its fields are those of the headers, see router/affinity."""

    session_id: str
    action: Literal["open", "bind", "close"] | None = None
    timeout: float | None = None


class Extensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of the request's `nvext`; those below the line are known and refused."""

    backend_instance_id: int | None = None
    decode_worker_id: int | None = None
    dp_rank: int | None = None
    token_data: list[int] | None = None
    greed_sampling: bool = False
    cache_salt: str | None = None
    agent_hints: AgentHints | None = None
    extra_fields: tuple[str, ...] = ()
    request_timestamp_ms: float | None = None
    session_control: SessionControl | None = None
    # ----
    use_raw_prompt: bool = False
    annotations: tuple[str, ...] = ()
    max_thinking_tokens: int | None = None
    metadata_upload: dict[str, Any] | None = None
    prefill_worker_id: int | None = None
    prefill_dp_rank: int | None = None
    routing_constraints: dict[str, Any] | None = None
    router: dict[str, Any] | None = None

    def check(self) -> None:
        """ApiError 400 for the first field that cannot be had."""
        for name, why in _REFUSED.items():
            if getattr(self, name):
                raise ApiError(400, f"nvext.{name} is not supported{why}", param=f"nvext.{name}")
        for field in self.extra_fields:
            if field not in EXTRA_FIELDS:
                known = ", ".join(EXTRA_FIELDS)
                text = f"nvext.extra_fields: {field!r} is none of {known}"
                raise ApiError(400, text, param="nvext.extra_fields")
        hints = self.agent_hints
        if hints is not None and hints.speculative_prefill:
            text = "nvext.agent_hints.speculative_prefill is not supported"
            raise ApiError(400, text, param="nvext.agent_hints")
        for name in ("backend_instance_id", "decode_worker_id"):
            if not 0 <= (getattr(self, name) or 0) < 1 << 64:
                raise ApiError(400, f"nvext.{name} is no worker id", param=f"nvext.{name}")
        if len({self.backend_instance_id, self.decode_worker_id} - {None}) > 1:
            text = "nvext.backend_instance_id and nvext.decode_worker_id are different workers"
            raise ApiError(400, text, param="nvext.decode_worker_id")
        try:
            array("I", self.token_data or ())
        except OverflowError:
            text = "nvext.token_data has an entry that is no token id"
            raise ApiError(400, text, param="nvext.token_data") from None

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The request headers that say the same."""
        worker = self.decode_worker_id
        worker = self.backend_instance_id if worker is None else worker
        headers: dict[str, float | str | None] = {
            "x-dynamo-worker-instance-id": worker,
            "x-dynamo-dp-rank": self.dp_rank,
        }
        if self.agent_hints is not None:
            hints = self.agent_hints
            strict = hints.strict_priority  # a level of its own in Dynamo, above the other one
            headers["x-dynamo-priority"] = hints.priority if strict is None else strict
        if self.session_control is not None:
            session = self.session_control
            headers[SESSION_ID_KEY] = session.session_id
            headers[SESSION_TIMEOUT_KEY] = session.timeout
            headers[SESSION_FINAL_KEY] = "true" if session.action == "close" else None
        return [(name, str(value)) for name, value in headers.items() if value is not None]


_REFUSED = {
    "use_raw_prompt": ": use /v1/completions",
    "annotations": ": see extra_fields",
    "max_thinking_tokens": "",
    "metadata_upload": "",
    "prefill_worker_id": "",
    "prefill_dp_rank": "",
    "routing_constraints": "",
    "router": ": see the header x-dynamo-slo-ttft-ms",
}
