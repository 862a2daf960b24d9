"""Processor: text to token ids and back, for one model.

`tokenizers` and `jinja2` are what models are published for; both come with the extra `frontend`.
"""

from ._byte_text import ByteText
from .chat_template import ChatTemplate
from .piece_cache import NO_TENANT, PieceCache, Tenant
from .stop_strings import StopStrings
from .tokenizer import Detokenizer, ModelText
