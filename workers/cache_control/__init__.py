"""What is an engine told of its cache ahead: what to keep of a request, what to load for one that
is expected?
"""

from .prefetch import PREFETCH_METHOD, ask_prefetch, encode_loaded
from .retention import (
    FIELD,
    LEAST,
    MOST,
    RETURNING_KEY,
    USUAL,
    Retention,
    Span,
    TokenRange,
    returning_spans,
)

__all__ = [
    "FIELD",
    "LEAST",
    "MOST",
    "PREFETCH_METHOD",
    "RETURNING_KEY",
    "USUAL",
    "Retention",
    "Span",
    "TokenRange",
    "ask_prefetch",
    "encode_loaded",
    "returning_spans",
]
