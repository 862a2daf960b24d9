"""What mock engines say of the model that they serve."""

from pathlib import Path

import pytest

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.own_model import OWN_MODEL, lacks_tokenizer
from dynamo_router.workers.records import DiscoveryConfig


@pytest.mark.parametrize(
    ("vocab_size", "model_path", "store", "lacks"),
    [
        (32000, None, "file", True),
        (4096, None, "file", False),
        (32000, str(OWN_MODEL), "file", False),
        (32000, None, None, False),
    ],
)
def test_engines_that_are_registered_without_a_tokenizer_say_how_to_get_one(
    tmp_path: Path, vocab_size: int, model_path: str | None, store: str | None, lacks: bool
) -> None:
    config = MockerConfig(
        engine=EngineConfig(vocab_size=vocab_size),
        model_path=model_path,
        discovery=DiscoveryConfig(discovery=store),
    )
    text = lacks_tokenizer(config)
    assert (text is not None) == lacks
    assert text is None or "give --vocab-size 4096, or --model-path" in text
