"""Processor: text to token ids and back, for one model."""

from ._byte_text import ByteText
from .chat_template import MAX_RENDERED_CHARS, ChatTemplate
from .growing_template import Grown, Point
from .piece_cache import NO_TENANT, PieceCache, Tenant
from .stop_strings import StopStrings
from .tokenizer import Detokenizer, ModelText
