"""docs/openai_fields.md: which engine takes which field, held on what each is sent."""

from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import prompt
from support.places import ROOT

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.workers.dialects import encode_bias
from dynamo_router.workers.dialects.dynamo_messages import read_request
from dynamo_router.workers.dialects.openai_requests import EngineKind, request_of
from dynamo_router.workers.token_services import TokenServiceClient
from dynamo_router.workers.token_services.open_engine import OpenEngineClient
from dynamo_router.workers.token_services.sglang import SglangClient
from dynamo_router.workers.token_services.vllm import VllmClient
from dynamo_router.workers.trtllm_proto import pb

GUIDES = pb.GuidedDecodingParams
PAGE = (ROOT / "docs" / "openai_fields.md").read_text()


def over_http(kind: EngineKind) -> Callable[[bytes], object]:
    return lambda body: request_of(body, kind, "tiny")


def over_grpc(kind: type[TokenServiceClient]) -> Callable[[bytes], object]:
    return lambda body: kind.translate(kind.__new__(kind), body, None)


ENGINES: dict[str, Callable[[bytes], object]] = {
    "vLLM, HTTP": over_http(EngineKind.COMPLETIONS),
    "vLLM, gRPC": over_grpc(VllmClient),
    "SGLang, HTTP": over_http(EngineKind.SGLANG),
    "SGLang, gRPC": over_grpc(SglangClient),
    "OpenEngine": over_grpc(OpenEngineClient),
    "llama.cpp": over_http(EngineKind.LLAMA),
    "Dynamo's workers": lambda body: read_request(body, None),
}


def guided(kind: int, guide: str) -> bytes:
    request = prompt("r1", 3)
    request.guided_decoding.guide_type, request.guided_decoding.guide = kind, guide
    return _body(request)


def changed(change: Callable[[Any], object]) -> bytes:
    request = prompt("r1", 3)
    change(request)
    return _body(request)


def _body(request: Any) -> bytes:
    body: bytes = request.SerializeToString()
    return body


ASKED = {
    "`response_format` `json_object`": guided(GUIDES.GUIDE_TYPE_JSON_SCHEMA, "{}"),
    "`guided_regex`": guided(GUIDES.GUIDE_TYPE_REGEX, "a+"),
    "`guided_choice`": guided(GUIDES.GUIDE_TYPE_EBNF_GRAMMAR, 'root ::= "a"'),
    "`response_format` `structural_tag`": guided(GUIDES.GUIDE_TYPE_STRUCTURAL_TAG, "{}"),
    "`bad_words`": changed(lambda request: request.bad.append("x")),
    "`logit_bias`": _body(prompt("r1", 3)) + encode_bias({5: 1.0}, 1000),
    "`echo` with `logprobs`": changed(
        lambda request: setattr(request.output_config, "prompt_logprobs", 1)
    ),
    "`echo` with `max_tokens: 0`": _body(prompt("r1", 3)),
    "`seed` |": changed(lambda request: setattr(request.sampling_config, "seed", 2**40)),
}
"""By how the row of each begins."""


def cells(begin: str) -> dict[str, str]:
    """What the row says of each engine."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    head = next(line for line in lines if line.startswith("| field |"))
    (row,) = [line for line in lines if line.startswith(f"| {begin}")]
    names, values = ([c.strip() for c in line.strip("|").split("|")] for line in (head, row))
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("begin", ASKED)
def test_an_engine_takes_what_the_table_says(begin: str, engine: str) -> None:
    try:
        ENGINES[engine](ASKED[begin])
        found = "yes"
    except InvalidRequestError:
        found = "400"
    assert cells(begin)[engine] == found


def test_a_row_is_held_or_is_the_routers_own() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 12]
    held = [row for row in rows if any(row.startswith(f"| {begin}") for begin in ASKED)]
    others = [row[:40] for row in rows if row not in held]
    assert len(held) == len(ASKED) and len(others) == 3, others
