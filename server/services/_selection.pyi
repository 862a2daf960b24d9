"""Types of the `_selection` kernel; router_service.py calls it."""

def write_selection(
    worker_id: int,
    dp_rank: int,
    address: str,
    overlap_blocks: int,
    request_blocks: int,
    cached_tokens: int,
    booked: bool,
    host_overlap_blocks: int,
    disk_overlap_blocks: int,
) -> bytes:
    """A serialized SelectWorkerResponse. OverflowError if a number is none of its field's,
    UnicodeEncodeError if the address is no text."""
