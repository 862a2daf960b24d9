"""What routing needs to know of trtllm requests, which themselves travel as bytes."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from google.protobuf.message import DecodeError
from xxhash import xxh3_64_hexdigest

from ...base.errors import InvalidRequestError
from ...router.affinity import AffinityConfig, Session
from ...router.prompt import Content, Prompt
from ...workers.channels import Metadata
from ...workers.retention import LEAST, RETURNING_KEY, Retention
from ...workers.trtllm_proto import length_delimited, pb
from ._generate_request import parse_generate, without_tokens

Change: TypeAlias = Callable[[bytes], bytes]
"""An engine's message, as the client is to have it."""

# The field request_id of requests and of answers.
_REQUEST_ID = 1
NO_LIMIT = 2**32 - 1
RETURNING = 80
"""The priority of what a session's next request begins with: above the usual one, with room left
for clients that know better."""
_NO_REQUEST = "the request is no trtllm.GenerateRequest"


class GenerateFacts(msgspec.Struct, frozen=True):
    """The parts of a request that decide where it goes.

    `prompt` has what selects the hash space of its blocks: adapter, salt, images. `sequences` is
    how many answers it asks for, `streaming` whether it wants them token by token, `retains`
    whether it says what of it the engine is to keep, `has_phase` whether that it is one leg of a
    request on two workers.
    """

    request_id: str
    prompt: Prompt
    largest_token: int
    max_tokens: int
    sequences: int
    streaming: bool
    retains: bool = False
    has_phase: bool = False


class ReadRequest(msgspec.Struct, frozen=True):
    """A request that was read already, within the limits of a RequestReader."""

    body: bytes
    """the serialized GenerateRequest, as workers get it"""
    facts: GenerateFacts


def read_generate(
    body: bytes, block_size: int, max_tokens: int = NO_LIMIT, max_id_bytes: int = NO_LIMIT
) -> GenerateFacts:
    """Read a serialized GenerateRequest, its prompt in blocks of `block_size` tokens.

    Raises InvalidRequestError if it is none or has no prompt; OverflowError(limit, found, id),
    before anything is decoded, if it is longer than that.
    """
    request_id = ""
    try:
        facts = parse_generate(body, max_tokens, max_id_bytes)
        request_id = facts[0]
        pb.GenerateRequest.FromString(without_tokens(body))  # or its engine finds that it is none
    except (ValueError, DecodeError):
        raise InvalidRequestError(_NO_REQUEST, request_id=request_id) from None
    request_id, tokens, largest, max_tokens, sequences, task, salt = facts[:7]
    media, streaming, retains, has_phase = facts[7:]
    if not len(tokens):
        text = "empty prompt: tokenized.input_token_ids has no token id"
        raise InvalidRequestError(text, request_id=request_id)
    namespace = None if salt is None else str(salt)
    content = Content(
        None if task is None else str(task),
        _media_namespace(body, namespace) if media else namespace,
    )
    return GenerateFacts(
        request_id,
        Prompt(tokens, block_size, content),
        largest,
        max_tokens,
        sequences or 1,
        streaming,
        retains,
        has_phase,
    )


def with_request_id(body: bytes, request_id: str) -> bytes:
    """The serialized request under another id.

    Of a field that comes twice the last one counts, so the rest stays as it is.
    """
    return body + _id_field(request_id)


def with_retention(
    body: bytes,
    facts: GenerateFacts,
    session: Session,
    metadata: Metadata,
    config: AffinityConfig,
) -> bytes:
    """The serialized request, whose facts these are, with what its engine is to keep of it for the
    sake of its session.

    As it came where that is not asked for, or its client has stated itself what is to be kept.
    """
    retention = _retention_of(session, config)
    if retention is None or facts.retains or any(key == RETURNING_KEY for key, _ in metadata):
        return body
    asked = pb.KvCacheRetentionConfig(config_json=retention.json())
    return body + bytes(pb.GenerateRequest(kv_cache_retention=asked).SerializeToString())


def _retention_of(session: Session, config: AffinityConfig) -> Retention | None:
    """By the session's headers; None where the settings do not ask for it.

    A session goes on until it says that it ends, or is silent for longer than its timeout.
    """
    seconds = config.session_retention_secs
    if seconds is None:
        return None
    if session.final:
        return Retention.whole(LEAST)
    return Retention.whole(RETURNING, min(seconds, session.timeout_s))


def restore_id(known_as: str, request_id: str) -> Change:
    """Answers of an engine that knows the request as something else than its caller does."""
    theirs, ours = _id_field(known_as), _id_field(request_id)

    def renamed(message: bytes) -> bytes:
        if message.startswith(theirs):
            return ours + message[len(theirs) :]
        # Fields need not be in order; of one that comes twice the last one counts.
        return message + ours

    return renamed


def _id_field(request_id: str) -> bytes:
    return length_delimited(_REQUEST_ID, request_id.encode())


def _media_namespace(body: bytes, salt: str | None) -> str | None:
    """The namespace of a prompt whose blocks depend on more than its tokens."""
    try:
        message = pb.GenerateRequest.FromString(body)
    except DecodeError:
        raise InvalidRequestError(_NO_REQUEST) from None
    images = message.multimodal_input.image_data
    table = message.prompt_tuning_config.embedding_table
    if not images and not table:
        return salt
    # Where in the prompt an image stands is the engine's knowledge, so the whole prompt is kept
    # apart: overlap with prompts of other images is missed, never invented.
    content = xxh3_64_hexdigest(b"".join((_framed(table), *map(_framed, images))))
    return f"{salt or ''}/{content}"


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data
