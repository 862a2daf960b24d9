"""The routes that agents speak beside chat: OpenAI's Responses, Anthropic's Messages.

A request is made a chat, and answered as one: within the same limits, by the same workers.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from ..transport.http1 import ErrorForm, Handler, HttpCall, answer_json
from .answer_form import AnswerKind
from .anthropic import (
    MESSAGES_NAMES,
    MessagesAnswer,
    Thinking,
    messages_error,
    read_count,
    read_messages,
)
from .engine_requests import PromptReader
from .openai import ApiError, ChatRequest, error_answer, errors_named
from .origin import tenant_of
from .parsers import ModelParsers
from .processor import ModelText
from .responses import RESPONSES_NAMES, ResponsesAnswer, read_responses

MESSAGES_PATH = "/v1/messages"
RESPONSES_ROUTE = "POST /v1/responses"
MESSAGES_ROUTE, COUNT_ROUTE = f"POST {MESSAGES_PATH}", f"POST {MESSAGES_PATH}/count_tokens"
AGENT_ROUTES = (RESPONSES_ROUTE, MESSAGES_ROUTE, COUNT_ROUTE)
THINKING_SWITCHES = frozenset(("enable_thinking", "thinking"))
"""Variables by which chat templates have a model think, or not."""

AnswerChat = Callable[[HttpCall, ChatRequest, AnswerKind], Awaitable[None]]
"""Has a chat answered, in the shape of an API."""


MESSAGES = AnswerKind("msg_", MessagesAnswer)


def error_form_of(path: str) -> ErrorForm:
    """How errors of requests to this path are written."""
    return messages_error if path.startswith(MESSAGES_PATH) else error_answer


class AgentRoutes:
    """Of one model."""

    def __init__(
        self,
        prompts: PromptReader,
        text: ModelText,
        parsers: Callable[[], ModelParsers],
        answer: AnswerChat,
    ) -> None:
        self._prompts, self._text, self._parsers, self._answer = prompts, text, parsers, answer

    @property
    def routes(self) -> dict[str, Handler]:
        return {
            RESPONSES_ROUTE: self._respond,
            MESSAGES_ROUTE: self._message,
            COUNT_ROUTE: self._count,
        }

    async def _respond(self, call: HttpCall) -> None:
        with errors_named(RESPONSES_NAMES):
            asked, chat = await self._prompts.read_by(read_responses, call.body)
            kind = AnswerKind("resp_", partial(ResponsesAnswer, asked))
            await self._answer(call, chat, kind)

    async def _message(self, call: HttpCall) -> None:
        with errors_named(MESSAGES_NAMES):
            asked, chat = await self._prompts.read_by(read_messages, call.body)
            self._switch_thinking(asked.thinking, chat)
            await self._answer(call, chat, MESSAGES)

    async def _count(self, call: HttpCall) -> None:
        with errors_named(MESSAGES_NAMES):
            asked, chat = await self._prompts.read_by(read_count, call.body)
            self._switch_thinking(asked.thinking, chat)
            tenant = tenant_of(call.headers, chat)
            tokens = await self._prompts.of_chat(chat, tenant, len(call.body))
            await answer_json(call, {"input_tokens": len(tokens)})

    def _switch_thinking(self, thinking: Thinking | None, chat: ChatRequest) -> None:
        """Have the model think or not; ApiError 400 where this one cannot."""
        if thinking is None or thinking.type == "adaptive":
            return
        template, wanted = self._text.template, thinking.type == "enabled"
        switches = THINKING_SWITCHES & (template.variables if template else frozenset())
        reasons = self._parsers().reasoning is not None
        if wanted and not reasons:
            text = "thinking: this model has no reasoning parser; see --reasoning-parser"
            raise ApiError(400, text, param="thinking")
        if not wanted and reasons and not switches:
            text = "thinking: the chat template of this model cannot turn it off"
            raise ApiError(400, text, param="thinking")
        if switches:
            given = chat.chat_template_kwargs or {}
            chat.chat_template_kwargs = {**dict.fromkeys(switches, wanted), **given}
