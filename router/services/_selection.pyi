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
) -> bytes: ...
