"""Long chats: prompts of turns of which only the items are read that are new."""

from .chat_items import (
    CHAT_ITEMS,
    MESSAGES_ITEMS,
    RESPONSES_ITEMS,
    ItemForm,
    ItemsApart,
    items_apart,
)
from .known_beginnings import KnownBeginnings, ReadChat, read_call
