"""Routers that share their load: what each reports of its bookings, and what the others count.

Pure: messages and `now` go in, messages and changes of load come out.
"""

from .messages import (
    HASH_BYTES,
    MAX_COUNT,
    MAX_ID,
    Ask,
    Batch,
    Beat,
    Booked,
    Ended,
    Event,
    Message,
    Picture,
    Prefilled,
    decode_message,
    encode_message,
)
from .own_bookings import OwnBookings
from .peer_book import PeerBook, bytes_of
