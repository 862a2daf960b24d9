"""Anthropic's Messages: its requests as chats, answers and errors in its shape."""

from .answers import MessagesAnswer
from .errors import messages_error
from .requests import MESSAGES_NAMES, Thinking, read_count, read_messages
