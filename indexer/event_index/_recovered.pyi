from ._actor import IndexActor

def take_recovered(
    actor: IndexActor,
    worker: tuple[int, int],
    message: bytes,
    whole: bool,
    last_event_id: int,
) -> bool: ...
