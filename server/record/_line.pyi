"""Types of the kernel that writes a line of a record."""

from ..dispatch import Request

def line_of(
    request: Request,
    arrived: float,
    ended: float,
    status: str,
    began_at: float,
    step: int,
    unique: int,
    key: bytes,
) -> bytes:
    """A line of JSON, newline included. What is None, empty, no finite number, or one attempt has
    no field.

    `step`: how many of the engines' blocks a hash stands for. `unique`: a hash that no other has,
    below 2**64. ValueError for a status that JSON would escape, or a time of arrival that is none.
    """
