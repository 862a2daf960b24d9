"""A prompt as the index and the slots know it: its length and the hashes of its full blocks."""

from typing import NamedTuple, Self, TypedDict

import numpy as np
import numpy.typing as npt

from ..base.errors import InvalidRequestError
from ..indexer.hashing import BlockMmInfos, Integers, block_hashes, packed_hashes, sequence_hashes

Hashes = npt.NDArray[np.uint64]


class Content(NamedTuple):
    """What besides the tokens decides whether two prompts share a cache."""

    lora_name: str | None = None
    cache_namespace: str | None = None
    block_mm_infos: BlockMmInfos | None = None


NO_CONTENT = Content()


class ContentFields(TypedDict, total=False):
    """The same as keyword arguments."""

    lora_name: str | None
    cache_namespace: str | None
    block_mm_infos: BlockMmInfos | None


class Prompt:
    """One prompt of `isl` tokens, for every question about it: hashed once, on first use.

    `token_ids` must not change until then, and are let go of afterwards. Raises InvalidRequestError
    if there are none, or they have no length.
    """

    __slots__ = (
        "_content",
        "_local_hashes",
        "_packed",
        "_sequence_hashes",
        "_token_ids",
        "block_size",
        "isl",
    )

    def __init__(self, token_ids: Integers, block_size: int, content: Content = NO_CONTENT) -> None:
        try:
            self.isl = len(token_ids)  # type: ignore[arg-type]  # anything sized will do
        except TypeError:
            raise InvalidRequestError("token_ids has no length", field="token_ids") from None
        if self.isl == 0:
            raise InvalidRequestError("empty prompt", field="token_ids")
        self.block_size = block_size
        self._content = content
        self._token_ids: Integers = token_ids
        self._local_hashes: Hashes | None = None
        self._sequence_hashes: Hashes | None = None
        self._packed: tuple[bytes, bytes] | None = None

    @classmethod
    def of_packed(
        cls, isl: int, block_size: int, packed: tuple[bytes, bytes], content: Content = NO_CONTENT
    ) -> Self:
        """A prompt of `isl` tokens with that content, whose full blocks have been hashed already,
        as `packed_hashes` has them. ValueError if those are not as many as it has full blocks."""
        if not isl // block_size * 8 == len(packed[0]) == len(packed[1]):
            sizes = f"{len(packed[0])} and {len(packed[1])} bytes of hashes"
            raise ValueError(f"{sizes} for {isl} tokens in blocks of {block_size}")
        prompt = cls(range(isl), block_size, content)
        prompt._token_ids, prompt._packed = (), packed
        return prompt

    @property
    def blocks(self) -> int:
        """Its blocks, a last one that is not full among them."""
        return -(-self.isl // self.block_size)

    @property
    def lora_name(self) -> str | None:
        """The adapter that computes it."""
        return self._content.lora_name

    @property
    def cache_namespace(self) -> str | None:
        """Prompts of another one share no cache with it."""
        return self._content.cache_namespace

    @property
    def local_hashes(self) -> Hashes:
        """Of every full block; InvalidRequestError if a token is no u32."""
        found = self._local_hashes
        return self._hash() if found is None else found

    @property
    def sequence_hashes(self) -> Hashes:
        """Of every prefix of full blocks; InvalidRequestError as above."""
        found = self._sequence_hashes
        if found is None:
            if self._packed is None:
                found = sequence_hashes(self.local_hashes)
            else:
                found = np.frombuffer(self._packed[1], np.uint64)
            self._sequence_hashes = found
        return found

    def packed_hashes(self) -> tuple[bytes, bytes]:
        """`local_hashes` and `sequence_hashes` for kernels, 8 bytes each as the machine has them;
        InvalidRequestError as above."""
        found = self._packed
        if found is None:
            token_ids = self._token_ids
            if self._local_hashes is not None or self._content is not NO_CONTENT:
                found = self.local_hashes.tobytes(), self.sequence_hashes.tobytes()
            else:
                try:
                    found = packed_hashes(token_ids, self.block_size)
                except (OverflowError, TypeError, ValueError) as error:
                    raise _no_tokens(error) from error
            self._packed = found
            self._token_ids = ()
        return found

    def hashed(self) -> Self:
        """Itself, after its blocks were hashed; InvalidRequestError if a token is no u32."""
        if self._local_hashes is None:
            self._hash()
        return self

    def _hash(self) -> Hashes:
        token_ids, content = self._token_ids, self._content
        if self._local_hashes is not None:  # by another thread, which then let go of the tokens
            return self._local_hashes
        if self._packed is not None:
            self._local_hashes = np.frombuffer(self._packed[0], np.uint64)
            return self._local_hashes
        try:
            found = block_hashes(
                token_ids,
                self.block_size,
                block_mm_infos=content.block_mm_infos,
                lora_name=content.lora_name,
                cache_namespace=content.cache_namespace,
            )
        except (OverflowError, TypeError, ValueError) as error:
            raise _no_tokens(error) from error
        self._local_hashes = found
        self._token_ids = ()
        return found


def _no_tokens(error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"token_ids: {error}", field="token_ids")


Tokens = Integers | Prompt
"""A prompt's token ids, or what `KvRouter.prompt` has made of them."""


def prompt_of(token_ids: Tokens, block_size: int, content: ContentFields) -> Prompt:
    """The handle that was given, or one for these tokens. ValueError if it is another router's, or
    content comes with a handle, which has its own.
    """
    if not isinstance(token_ids, Prompt):
        return Prompt(token_ids, block_size, Content(**content) if content else NO_CONTENT)
    if content and any(value is not None for value in content.values()):
        raise ValueError(f"{', '.join(content)}: a Prompt is given that where it is made")
    if token_ids.block_size != block_size:
        raise ValueError(f"a Prompt in blocks of {token_ids.block_size}, not {block_size}")
    return token_ids
