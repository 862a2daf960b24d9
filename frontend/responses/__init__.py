"""OpenAI's Responses, without a store: its requests as chats, and answers in its shape."""

from .answers import ResponsesAnswer
from .items import add_item
from .requests import RESPONSES_NAMES, ReadResponses, read_responses
