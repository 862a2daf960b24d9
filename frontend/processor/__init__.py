"""Processor: text to token ids and back, for one model.

`tokenizers` and `jinja2` are what models are published for; both come with the extra `frontend`.
"""

from .chat_template import ChatTemplate
from .stop_strings import Piece, StopStrings
from .tokenizer import Detokenizer, ModelText

__all__ = ["ChatTemplate", "Detokenizer", "ModelText", "Piece", "StopStrings"]
