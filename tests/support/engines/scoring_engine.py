"""An engine over HTTP, as vLLM's server is asked, whose logprobs follow from the tokens: each is a
function of the token and the one before it."""

import asyncio
import json
import math
from typing import Any

import numpy as np
from support.servers.http_engine import Asked, HttpEngine, reply

VOCABULARY = 64
"""Ids that have a chance; others are not likelier than these."""
FLOOR = 40.0


def logprobs_after(token: int) -> dict[int, float]:
    """Of each id after this one; numbers of 32 bits, as engines compute them."""
    raw = [math.sin(token * 7.0 + each * 3.0) * 3 for each in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, raw)))
    return {each: float(np.float32(value - total)) for each, value in enumerate(raw)}


def scored(before: int, token: int, most: int) -> dict[int, float]:
    """The token's own logprob first, then those of the likeliest ones, as vLLM lists them."""
    known = logprobs_after(before)
    own = known.get(token, float(np.float32(-FLOOR - token / 7)))
    likeliest = sorted(known.items(), key=lambda pair: -pair[1])[:most]
    return {token: own, **dict(likeliest)}


def greedy(before: int) -> int:
    known = logprobs_after(before)
    return max(known, key=lambda each: known[each])


def _generated(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(greedy(tokens[-1]))
    return tokens[len(prompt) :]


def legacy(ids: list[int], tokens: list[int], most: int, name: Any) -> dict[str, Any]:
    """The logprobs of these tokens, which are the last of `ids`, in the shape of completions."""
    first = len(ids) - len(tokens)
    each = [
        None if at == 0 else scored(ids[at - 1], ids[at], most) for at in range(first, len(ids))
    ]
    return {
        "tokens": [name(token) for token in tokens],
        "token_logprobs": [
            None if found is None else found[token]
            for token, found in zip(tokens, each, strict=True)
        ],
        "top_logprobs": [
            None if found is None else {name(token): value for token, value in found.items()}
            for found in each
        ],
        "text_offset": list(range(len(tokens))),
    }


def answer_to(body: Any) -> Any:
    """What the engine says, whole."""
    prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
    most, choices = body.get("logprobs"), []
    name = "token_id:{}".format if body.get("return_tokens_as_token_ids") else "<{}>".format
    for index, prompt in enumerate(prompts):
        tokens = _generated(prompt, body["max_tokens"])
        shown = [*prompt, *tokens] if body.get("echo") else tokens
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(map("<{}>".format, shown)),
            "finish_reason": "length",
            "logprobs": None if most is None else legacy([*prompt, *tokens], shown, most, name),
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = tokens
        if (wanted := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None] + [
                {
                    str(token): {"logprob": value, "rank": 1, "decoded_token": f"<{token}>"}
                    for token, value in scored(before, own, wanted).items()
                }
                for before, own in zip(prompt, prompt[1:], strict=False)
            ]
        choices.append(choice)
    return {"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


async def _serve(asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.body.get("stream"):
        error = {"message": "prompt_logprobs are not available when stream is true"}
        writer.write(reply(json.dumps({"error": error}).encode(), status=400))
    else:
        writer.write(reply(json.dumps(answer_to(asked.body)).encode()))
    await writer.drain()


def scoring_engine() -> HttpEngine:
    return HttpEngine({"/v1/completions": _serve})
