"""Reads callers' requests within bounds, long ones off the event loop."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...base.errors import UNREADABLE_MESSAGE, InvalidRequestError
from ...base.limit_hits import LimitHits
from ...indexer.hashing import Integers
from ...process.off_loop import OffLoop
from ...router.prompt import NO_CONTENT, Content, Prompt
from ..caller_limits import CallerLimits
from ._generate_request import parse_tokens
from ._json_tokens import count_parts, cut_tokens, outline_of
from .generate_request import GenerateFacts, read_generate

LONG_BYTES = 128 << 10
"""A longer request is read and hashed off the loop. Up to here that takes less than a millisecond
(some 2 ns a byte), and to change threads costs a tenth of one."""

LONG_PROMPT = 1 << 18
"""Tokens of a prompt whose blocks are hashed off the loop: a nanosecond a token."""

PROMPT_LIMIT = "max_prompt_tokens"
"""The field of the error for a prompt that is longer than prompts may be."""

MAX_DECODED_BYTES = 64 << 10
"""Longest message that is decoded as a whole; tokens, which have a limit of their own, apart."""

OUTLINED_BYTES = 4096
"""A longer string is empty in a body's outline."""
MAX_JSON_PARTS = 32 << 10
MAX_JSON_VALUES = 256 << 10
"""Most strings, lists and objects of a JSON body, and most values: a decoder holds the interpreter
for as long as it works, some 0.1 us for a part and 20 ns for a number. A body that is decoded in
pieces may have more parts."""

Tokens = npt.NDArray[np.uint32]
T = TypeVar("T")


class RequestReader:
    """What a request says, checked against the limits before it is decoded; InvalidRequestError
    if it is too long or none.

    `hashes`: the prompts' blocks will be asked for, so those of long ones are hashed off the loop.
    """

    def __init__(
        self,
        block_size: int,
        limits: CallerLimits | None = None,
        hits: LimitHits | None = None,
        off_loop: OffLoop | None = None,
        *,
        hashes: bool = True,
    ) -> None:
        """`off_loop`, if it is not given, is one of its own."""
        self.limits = limits or CallerLimits()
        self.off_loop = off_loop or OffLoop()
        self._owns_threads = off_loop is None
        self.hits = hits or LimitHits()
        self.block_size = block_size
        self.hashes = hashes
        """whether prompts are compared by their blocks"""

    def close(self) -> None:
        """End the threads that are its own. Idempotent."""
        if self._owns_threads:
            self.off_loop.close()

    async def generate(self, body: bytes) -> GenerateFacts:
        """The routing facts of a serialized GenerateRequest."""
        facts = self.generate_at_once(body)
        if facts is not None:
            return facts
        most = self.limits.max_prompt_tokens, self.limits.max_id_bytes
        try:
            return await self._off(body, partial(self._read_and_hash, body, *most))
        except OverflowError as error:
            raise self._too_long(error) from None

    def generate_at_once(self, body: bytes) -> GenerateFacts | None:
        """The same of one that is not long; None: ask for it by `generate`."""
        if len(body) > LONG_BYTES:
            return None
        limits = self.limits
        try:
            return read_generate(
                body, self.block_size, limits.max_prompt_tokens, limits.max_id_bytes
            )
        except OverflowError as error:
            raise self._too_long(error) from None

    async def tokens(self, body: bytes, number: int = 1) -> tuple[Tokens, bytes]:
        """The token ids of a message, its field `number`, and its other fields as a message."""
        found = self.tokens_at_once(body, number)
        if found is not None:
            return found
        most = (self.limits.max_prompt_tokens, MAX_DECODED_BYTES)
        try:
            return await self._off(body, partial(parse_tokens, body, number, *most))
        except (OverflowError, ValueError) as error:
            raise self._refusal(error) from None

    def tokens_at_once(self, body: bytes, number: int = 1) -> tuple[Tokens, bytes] | None:
        """The same of one that is not long; None: ask for them by `tokens`."""
        if len(body) > LONG_BYTES:
            return None
        try:
            return parse_tokens(body, number, self.limits.max_prompt_tokens, MAX_DECODED_BYTES)
        except (OverflowError, ValueError) as error:
            raise self._refusal(error) from None

    async def json_tokens(self, body: bytes, key: bytes) -> tuple[Tokens, bytes]:
        """The token ids under a key of a JSON object, none if they are not there, and the object
        with an empty list in their place."""
        most = (self.limits.max_prompt_tokens, MAX_DECODED_BYTES)
        try:
            if len(body) <= LONG_BYTES:
                tokens, rest = cut_tokens(body, key, *most)
            else:
                tokens, rest = await self._off(body, partial(cut_tokens, body, key, *most))
        except OverflowError as error:
            raise self._too_long(error) from None
        except ValueError as error:
            raise InvalidRequestError(f"{key.decode()}: {error}") from None
        return np.empty(0, np.uint32) if tokens is None else tokens, rest

    async def ids_apart(self, body: bytes, key: bytes) -> tuple[Tokens | None, bytes]:
        """Where what stands under the key is a list of token ids: they, and the object with an
        empty list in their place, so that no decoder has to go through them. Else None and the
        body: what is wrong with it is for its reader to say."""
        try:
            ids, rest = await self.json_tokens(body, key)
        except InvalidRequestError:
            return None, body
        return (ids, rest) if len(ids) else (None, body)

    async def check_json(self, body: bytes, most_parts: int = MAX_JSON_PARTS) -> bytes:
        """InvalidRequestError for a body of which a decoder would hold up all other requests. Else
        its outline: the body without its long strings, through which a decoder is soon."""
        if len(body) <= LONG_BYTES:
            return body
        (parts, values), outline = await self.off_loop.run(
            lambda: (count_parts(body), outline_of(body, OUTLINED_BYTES))
        )
        for what, found, most in (
            ("strings, lists and objects", parts, most_parts),
            ("values", values, MAX_JSON_VALUES),
        ):
            if found > most:
                self.hits.hit("json_parts")
                raise InvalidRequestError(f"the body has {found} {what}: more than {most}")
        return outline

    async def prompt(
        self, tokens: Integers, lora_name: str | None, cache_namespace: str | None
    ) -> Prompt:
        """A prompt to ask about, hashed off the loop if it is long. An empty name is none.

        InvalidRequestError if there are no tokens, or too many, or a name is too long.
        """
        prompt = self.prompt_at_once(tokens, lora_name, cache_namespace)
        if prompt.isl > LONG_PROMPT and self.hashes:
            await self.off_loop.run(partial(self._hash, prompt), size=prompt.isl * 4)
        return prompt

    def prompt_at_once(
        self, tokens: Integers, lora_name: str | None, cache_namespace: str | None
    ) -> Prompt:
        """The same, not hashed: of one that is not long."""
        content = NO_CONTENT
        if lora_name or cache_namespace:
            self.check_name("lora_name", lora_name or "")
            self.check_name("cache_namespace", cache_namespace or "")
            content = Content(lora_name or None, cache_namespace or None)
        prompt = Prompt(tokens, self.block_size, content)
        self.check_length(prompt.isl)
        return prompt

    def check_length(self, tokens: int) -> None:
        """InvalidRequestError if a prompt has more tokens than prompts may have."""
        if tokens > self.limits.max_prompt_tokens:
            raise self._too_long(OverflowError("max_prompt_tokens", tokens))

    def check_name(self, what: str, name: str) -> None:
        """InvalidRequestError if a name that a caller gives is too long."""
        if name and len(name.encode("utf-8", "surrogatepass")) > self.limits.max_id_bytes:
            self.hits.hit("max_id_bytes")
            most = self.limits.max_id_bytes
            raise InvalidRequestError(f"{what} is longer than {most} bytes")

    def _off(self, body: bytes, work: Callable[[], T]) -> Awaitable[T]:
        return self.off_loop.run(work, size=len(body))

    def _hash(self, prompt: Prompt) -> None:
        if self.hashes:
            _ = prompt.hashed().sequence_hashes

    def _read_and_hash(self, body: bytes, max_tokens: int, max_id_bytes: int) -> GenerateFacts:
        facts = read_generate(body, self.block_size, max_tokens, max_id_bytes)
        self._hash(facts.prompt)
        return facts

    def _refusal(self, error: OverflowError | ValueError) -> InvalidRequestError:
        """The error for the sender of a message that the kernel found wrong."""
        if isinstance(error, OverflowError):
            return self._too_long(error)
        return InvalidRequestError(UNREADABLE_MESSAGE)

    def _too_long(self, error: OverflowError) -> InvalidRequestError:
        limit, found, *request_id = error.args
        self.hits.hit(limit)
        text = f"{limit}: {found} is more than {self._most(limit)}"
        field = limit if limit == PROMPT_LIMIT else None
        return InvalidRequestError(text, field=field, request_id="".join(request_id))

    def _most(self, limit: str) -> int:
        if limit == "decoded_bytes":
            return MAX_DECODED_BYTES
        most: int = getattr(self.limits, limit)
        return most
