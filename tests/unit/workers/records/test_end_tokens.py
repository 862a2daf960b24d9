"""Which tokens a model ends its answers with, and that a mock engine of it says none of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.engines.mocker.own_model import OWN_MODEL
from dynamo_router.engines.mocker.sampling import EngineRequest
from dynamo_router.workers.records import end_tokens_of

ADDED = [{"id": 5, "content": "<|end|>"}, {"id": 6, "content": "<|turn|>"}, "junk", {"content": 3}]
TOKENIZER = {"tokenizer.json": {"added_tokens": ADDED}}


def folder(path: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, set()),
        ({"config.json": {"eos_token_id": 7}}, {7}),
        ({"config.json": {"eos_token_id": [7, 8]}}, {7, 8}),
        (
            {"config.json": {"eos_token_id": 7}, "generation_config.json": {"eos_token_id": 9}},
            {7, 9},
        ),
        ({"config.json": {"eos_token_id": [True, -1, "7", None]}}, set()),
        ({**TOKENIZER, "tokenizer_config.json": {"eos_token": "<|turn|>"}}, {6}),
        ({**TOKENIZER, "tokenizer_config.json": {"eos_token": {"content": "<|end|>"}}}, {5}),
        ({**TOKENIZER, "tokenizer_config.json": {"eos_token": None}}, set()),
        ({"tokenizer_config.json": {"eos_token": "<|end|>"}}, set()),
    ],
)
def test_whatever_a_file_names_ends_an_answer(
    tmp_path: Path, files: dict[str, Any], ends: set[int]
) -> None:
    assert end_tokens_of(folder(tmp_path, files)) == ends


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"model_path: cannot read .*config\.json"):
        end_tokens_of(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="model_path"):
        end_tokens_of(tmp_path)


def test_the_own_model_ends_as_its_files_say() -> None:
    assert end_tokens_of(OWN_MODEL) == {2}


def generated(*, ends: tuple[int, ...] = (), model: Path | None = None) -> set[int]:
    """Most of what an engine of 16 tokens can say."""
    engine = EngineConfig(vocab_size=16, eos_token_id=ends)
    path = None if model is None else str(model)
    fleet = MockFleet(MockerConfig(port=0, engine=engine, model_path=path))
    tokens = np.arange(4, dtype=np.uint32)
    request = EngineRequest(request_id="r", token_ids=tokens, max_tokens=600)
    return set(fleet.engines[0].engine.submit(request).output)


def test_a_mock_engine_of_a_model_never_says_its_end_tokens(tmp_path: Path) -> None:
    everything = set(range(16))
    model = folder(tmp_path, {"config.json": {"eos_token_id": [7, 8, 900]}})
    assert generated() == everything - {2}
    assert generated(model=model) == everything - {7, 8}
    assert generated(model=model, ends=(3,)) == everything - {3}  # as it was told
