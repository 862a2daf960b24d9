"""What our mock engines answer, in the words of the tokenizer that Dynamo's processes get."""

import numpy as np

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.sampling import plan_output
from dynamo_router.engines.serving.request import EngineRequest


def words_for(tokens: list[int], count: int, engine: EngineConfig) -> list[str]:
    """The answer of so many tokens to a prompt. Token 0 is special, and is no text."""
    asked = EngineRequest(
        request_id="", token_ids=np.array(tokens, dtype=np.uint32), max_tokens=count
    )
    planned = plan_output(asked, vocab_size=engine.vocab_size, ends=engine.end_tokens).tokens
    return [f"w{token}" if token > 2 else "<unk>" for token in planned if token != 0]
