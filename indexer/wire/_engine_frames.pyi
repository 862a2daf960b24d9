def frame_batch(
    data: bytes,
    *,
    worker_id: int,
    dp_rank: int,
    publisher_id: int,
    sequence: int,
    first_event_id: int,
    block_size: int,
    clears: bool = False,
    decoded: bool = False,
) -> bytes: ...
