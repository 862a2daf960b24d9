"""Why an answer ended, in the words of engines and in those of OpenAI's API. Pure."""

import re

from ..base.errors import StatusCode
from .failures import EngineCallError, Origin

FAILED = "error"
"""The engine could not go on: such an answer is a failed call, whatever came of it before."""
ABORTED = "abort"
"""It ended before its end: the engine shut down, or the request was aborted there."""

SHOWN_REASONS = {
    "stop": "stop",
    "end_id": "stop",
    "stop_words": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "": ABORTED,
    "abort": ABORTED,
    "aborted": ABORTED,
    "cancelled": ABORTED,
    "timeout": ABORTED,
    "not_finished": ABORTED,
}
"""The reasons of engines that are known, as clients of OpenAI's API read them."""
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def check_reason(reason: str) -> None:
    """EngineCallError for the reason of a failure, and for what is no word: whichever listener
    passes it on, clients write it into logs and labels."""
    if reason in SHOWN_REASONS:
        return
    if reason == FAILED:
        text = "the engine ended the answer with an error"
    elif _WORD.fullmatch(reason) is None:
        text = "its answer ended with a reason that is no word"
    else:
        return
    raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text)


def shown_reason(reason: str) -> str:
    """An engine's reason as clients of OpenAI's API read it; those of gRPC get it as it is.

    A word that is not known here goes on as it is: the engine has one more reason than we know of,
    and its users know it. EngineCallError as `check_reason`.
    """
    check_reason(reason)
    return SHOWN_REASONS.get(reason, reason)
