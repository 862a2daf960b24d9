"""Clients of OpenAI's API under adversity: each answer is held against what its prompt asks for."""

import json
from random import Random
from typing import Any

import aiohttp
from support.adversity.ledger import NOT_COUNTED, Entry, Ledger
from support.chats.oracle import ChatOracle, Expected, StreamedAnswer

from dynamo_router.bench.load.chat_client import WORDS
from dynamo_router.server.dispatch import HTTP_STATUSES

CHAT_KINDS = ("chat", "chat_whole", "chat_tools", "conversation", "chat_leaver")
CODES = {status: code.name.lower() for code, status in HTTP_STATUSES.items()}
CODES |= {400: "invalid_argument", 500: "internal"}
LOST = "was lost in mid-stream"
TIMEOUT = aiohttp.ClientTimeout(total=60)
FAMILIES = 5
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"look_{name}",
            "description": f"Looks up {name} of a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
    for name in ("weather", "time", "way")
]


class ChatClients:
    """Those of one step. `run` one of a kind: it ends, and its entries say what was wrong."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        oracle: ChatOracle,
        ledger: Ledger,
        random: Random,
        *,
        loses_streams: bool,
        loses_connections: bool = False,
    ) -> None:
        """What may befall a chat by the faults of this step: that its stream is lost once it has
        begun, or its connection at any time."""
        self._session, self._url = session, f"http://{address}/v1/chat/completions"
        self._oracle, self._ledger, self._random = oracle, ledger, random
        self._loses_streams, self._loses_connections = loses_streams, loses_connections
        self._made = 0
        self.prompts: list[list[int]] = []
        """of the chats so far, in token ids"""
        self.messages = 0
        """pieces of answers that came so far"""

    async def run(self, kind: str) -> None:
        random = self._random
        if kind == "conversation":
            await self._converse(kind)
        elif kind == "chat_leaver":
            await self._leave(kind)
        else:
            chat = self._chat([self._message()], stream=kind != "chat_whole")
            if kind == "chat_tools":
                chat["tools"] = TOOLS[: random.randint(1, len(TOOLS))]
            await self._ask(kind, chat)

    # Kinds

    async def _converse(self, kind: str) -> None:
        """Turns of which each has the ones before it, and their answers."""
        messages: list[dict[str, str]] = []
        for _ in range(self._random.randint(2, 4)):
            messages.append(self._message())
            entry, text = await self._ask(kind, self._chat(messages, stream=True))
            if entry.code != "ok":
                return
            messages.append({"role": "assistant", "content": text})

    async def _leave(self, kind: str) -> None:
        chat = self._chat([self._message()], stream=True)
        entry, expected = self._open(kind, chat)
        most = self._random.randint(0, 3)
        try:
            async with self._session.post(self._url, json=chat, timeout=TIMEOUT) as response:
                entry.code = CODES.get(response.status, "") if response.status != 200 else ""
                answer = StreamedAnswer()
                while entry.messages < most and (data := await response.content.readany()):
                    self._take(entry, answer, data)
                response.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            self._on_lost_connection(entry, error)
            return
        self._check_beginning(entry, answer, expected)
        lost = self._losses(entry)
        if entry.code and entry.code not in lost:
            entry.wrong.append("it failed before it left")
        entry.counted_as = frozenset({"ok", "cancelled", *lost, NOT_COUNTED})

    async def _ask(self, kind: str, chat: dict[str, Any]) -> tuple[Entry, str]:
        """Reads everything, and fails only for a reason; its entry, and the answer's text."""
        entry, expected = self._open(kind, chat)
        text = ""
        try:
            async with self._session.post(self._url, json=chat, timeout=TIMEOUT) as response:
                if response.status != 200:
                    entry.code = CODES.get(response.status, f"status {response.status}")
                    entry.details = (await response.text())[:300]
                elif chat["stream"]:
                    text = await self._read_stream(entry, response, expected)
                else:
                    text = await self._read_whole(entry, response, expected)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._on_lost_connection(entry, error)
            return entry, ""
        entry.counted_as = frozenset((entry.code,))
        if entry.code not in ("ok", *self._losses(entry)):
            entry.wrong.append("it failed while a healthy worker could be reached")
        return entry, text

    # Answers

    async def _read_stream(
        self, entry: Entry, response: aiohttp.ClientResponse, expected: Expected
    ) -> str:
        answer = StreamedAnswer()
        while data := await response.content.readany():
            self._take(entry, answer, data)
        self._check_beginning(entry, answer, expected)
        if answer.error:
            entry.code = "unavailable" if LOST in answer.error else "failed"
            entry.details = answer.error
            return answer.text
        entry.code = "ok"
        if not answer.done or answer.cut:
            entry.wrong.append("its stream ended without its end")
        self._check_whole(entry, answer.text, answer.reason, answer.usage, expected)
        return answer.text

    async def _read_whole(
        self, entry: Entry, response: aiohttp.ClientResponse, expected: Expected
    ) -> str:
        body = await response.json()
        self.messages += 1
        (choice,) = body["choices"]
        text = choice["message"]["content"] or ""
        entry.code = "ok"
        self._check_whole(entry, text, choice["finish_reason"], body["usage"], expected)
        return str(text)

    def _take(self, entry: Entry, answer: StreamedAnswer, data: bytes) -> None:
        entry.messages += 1
        self.messages += 1
        try:
            answer.take(data)
        except (ValueError, KeyError, TypeError) as error:
            entry.wrong.append(f"an event cannot be read: {error!r}, {data[:200]!r}")

    def _check_beginning(self, entry: Entry, answer: StreamedAnswer, expected: Expected) -> None:
        entry.wrong += answer.wrong
        if not expected.text.startswith(answer.text):
            entry.wrong.append(f"{answer.text[-80:]!r} is not what its prompt calls for")

    def _check_whole(
        self, entry: Entry, text: str, reason: str | None, usage: Any, expected: Expected
    ) -> None:
        if text != expected.text:
            entry.wrong.append(f"OK with {text!r}, not {expected.text!r}")
        if reason != "length":
            entry.wrong.append(f"it ended by {reason!r}")
        prompt = len(expected.prompt)
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": expected.tokens,
            "total_tokens": prompt + expected.tokens,
        }
        told = {name: (usage or {}).get(name) for name in counts}
        if told != counts:
            entry.wrong.append(f"its usage is {told}, not {counts}")

    def _on_lost_connection(self, entry: Entry, error: Exception) -> None:
        entry.code, entry.details = "lost", repr(error)
        if isinstance(error, TimeoutError) or not self._loses_connections:
            entry.wrong.append("its connection failed")

    # Questions

    def _losses(self, entry: Entry) -> set[str]:
        return {"unavailable"} if entry.messages and self._loses_streams else set()

    def _open(self, kind: str, chat: dict[str, Any]) -> tuple[Entry, Expected]:
        self._made += 1
        expected = self._oracle.answer(json.loads(json.dumps(chat)))
        self.prompts.append(expected.prompt)
        return self._ledger.open(kind, f"{kind} {self._made}"), expected

    def _chat(self, messages: list[dict[str, str]], *, stream: bool) -> dict[str, Any]:
        chat: dict[str, Any] = {
            "model": "tiny",
            "messages": list(messages),
            "max_tokens": self._random.randint(1, 60),
            "stream": stream,
        }
        if stream:
            chat["stream_options"] = {"include_usage": True}
        return chat

    def _message(self) -> dict[str, str]:
        """Of which a part is shared with others'."""
        random = self._random
        family = random.randrange(FAMILIES)
        shared = " ".join(WORDS[family : family + random.randint(0, 60)])
        own = " ".join(
            random.choice((*WORDS, "é漢👩‍👧", "1234")) for _ in range(random.randint(1, 40))
        )
        return {"role": "user", "content": f"{shared} {own}"}
