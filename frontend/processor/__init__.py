"""Processor: text to token ids and back, for one model.

`tokenizers` and `jinja2` are what models are published for; both come with the extra `frontend`.
"""

from ._byte_text import ByteText
from .chat_template import MAX_RENDERED_CHARS, ChatTemplate
from .piece_cache import NO_TENANT, PieceCache, Tenant
from .stop_strings import Piece, StopStrings
from .template_pieces import FEW_MESSAGES, MOST_MESSAGES, TemplatePieces
from .template_text import Shape, TextPiece, taken_apart, written
from .tokenizer import Detokenizer, ModelText

__all__ = [
    "FEW_MESSAGES",
    "MAX_RENDERED_CHARS",
    "MOST_MESSAGES",
    "NO_TENANT",
    "ByteText",
    "ChatTemplate",
    "Detokenizer",
    "ModelText",
    "Piece",
    "PieceCache",
    "Shape",
    "StopStrings",
    "TemplatePieces",
    "Tenant",
    "TextPiece",
    "taken_apart",
    "written",
]
