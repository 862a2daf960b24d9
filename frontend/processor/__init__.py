"""Processor: text to token ids and back, for one model."""

from ._byte_text import ByteText
from .chat_template import MAX_RENDERED_CHARS, ChatTemplate
from .piece_cache import NO_TENANT, PieceCache, Tenant
from .stop_strings import StopStrings
from .template_pieces import FEW_MESSAGES, MOST_MESSAGES, TemplatePieces
from .template_text import Shape, TextPiece, taken_apart, written
from .tokenizer import Detokenizer, ModelText
