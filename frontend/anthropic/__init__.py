"""Anthropic's Messages: its requests as chats, answers and errors in its shape."""

from .answers import MessagesAnswer
from .blocks import add_message, check_end
from .errors import messages_error
from .requests import MESSAGES_NAMES, ReadMessages, Thinking, read_count, read_messages
