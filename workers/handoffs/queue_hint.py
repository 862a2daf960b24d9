"""RemotePrefillHint: what a router writes to a decode worker that is to have its prompt computed
through the prefill queue. It stands where a parcel would stand. Pure."""

import msgspec

from ...base.errors import UNREADABLE


class RemotePrefillHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The router has decided for a remote prefill, within these thresholds."""

    worker_id: int | None = None
    """the prefill worker that is to have it, for its cache; None: any"""
    max_local_prefill_length: int | None = None
    max_prefill_queue_size: int | None = None

    def encode(self) -> bytes:
        return msgspec.json.encode(_Hinted(self))


class _Hinted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefill_queue: RemotePrefillHint


def read_hint(handoff: bytes) -> RemotePrefillHint | None:
    """The hint in the place of a parcel; None if it is another one."""
    try:
        return msgspec.json.decode(handoff, type=_Hinted).prefill_queue
    except (*UNREADABLE, msgspec.ValidationError):
        return None
