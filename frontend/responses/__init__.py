"""OpenAI's Responses, without a store: its requests as chats, and answers in its shape."""

from .answers import ResponsesAnswer
from .requests import RESPONSES_NAMES, read_responses
