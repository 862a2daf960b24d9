"""SharedRequest: what of a request decides whether two workers may share it."""

from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError

from ...base.errors import InvalidRequestError
from ...workers.dialects import split_tokens
from ...workers.handoffs import why_whole
from ...workers.trtllm_proto import pb
from ..migration import why_fixed


class SharedRequest:
    """Of a serialized GenerateRequest, which is read once, when it is first asked about; what is
    left of a stream that moved differs in none of it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @cached_property
    def why_whole(self) -> InvalidRequestError | None:
        """What of it two workers cannot share, as the error for its client where no worker runs it
        alone; None: they can."""
        if self._message is None:
            return InvalidRequestError("the request is no trtllm.GenerateRequest")
        return why_whole(self._message)

    @cached_property
    def goes_on(self) -> bool:
        """Whether the rest of a streamed answer can be asked of another pair, from its first
        token."""
        message = self._message
        if message is None or message.output_config.HasField("logprobs"):
            return False  # not every prefill engine says how likely its token was
        return why_fixed(message, stops_held=False) is None

    @cached_property
    def _message(self) -> Any:
        try:
            rest, *_ = split_tokens(self._body)
            return pb.GenerateRequest.FromString(rest)
        except (DecodeError, ValueError):
            return None
