"""Types of the kernel that writes a line of a record."""

_Seconds = float | None

def line_of(
    arrived_s: float,
    input_length: int,
    output_length: int,
    hash_ids: bytes,
    texts: tuple[str, str, str, str],
    overlap_tokens: int | None,
    cached_tokens: int | None,
    times_s: tuple[
        _Seconds, _Seconds, _Seconds, _Seconds, _Seconds, _Seconds, _Seconds, _Seconds, _Seconds
    ],
    attempts: int,
) -> bytes:
    """A line of JSON, newline included. What is None, empty, no finite number, or one attempt has
    no field.

    `hash_ids`: a JSON array. `texts`: status, session, tenant, worker. `times_s`, written as
    milliseconds: TTFT, ITL, end to end, in the queue, TTFT of the engine, foreseen, soonest, the
    objectives of TTFT and ITL. ValueError for a text that JSON would escape.
    """
