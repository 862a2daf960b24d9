"""Processor: text to token ids and back, for one model."""

from ._byte_text import ByteText
from .chat_template import MAX_RENDERED_CHARS, ChatTemplate
from .encoder import EncodedPiece
from .growing_template import Grown, Point
from .piece_cache import KEY_BYTES, NO_TENANT, PART_OVERHEAD, PieceCache, Tenant
from .stop_strings import StopStrings
from .tokenizer import Detokenizer, ModelText
