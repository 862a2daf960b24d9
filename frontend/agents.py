"""The routes that agents speak beside chat: OpenAI's Responses.

A request is made a chat, and answered as one: within the same limits, by the same workers.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from ..transport.http1 import Handler, HttpCall
from .answer_form import AnswerKind
from .engine_requests import PromptReader
from .openai import ChatRequest, errors_named
from .responses import CHAT_NAMES, ResponsesAnswer, read_responses

RESPONSES_ROUTE = "POST /v1/responses"
AGENT_ROUTES = (RESPONSES_ROUTE,)

AnswerChat = Callable[[HttpCall, ChatRequest, AnswerKind], Awaitable[None]]
"""Has a chat answered, in the shape of an API."""


class AgentRoutes:
    """Of one model."""

    def __init__(self, prompts: PromptReader, answer: AnswerChat) -> None:
        self._prompts, self._answer = prompts, answer

    @property
    def routes(self) -> dict[str, Handler]:
        return {RESPONSES_ROUTE: self._respond}

    async def _respond(self, call: HttpCall) -> None:
        with errors_named(CHAT_NAMES):
            asked, chat = await self._prompts.read_by(read_responses, call.body)
            kind = AnswerKind("resp_", partial(ResponsesAnswer, asked))
            await self._answer(call, chat, kind)
