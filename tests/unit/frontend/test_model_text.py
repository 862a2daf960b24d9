"""A model's folder: its tokenizer, special tokens and template; text to ids and back."""

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.processor import ModelText
from dynamo_router.process.off_loop import OffLoop


@pytest.fixture(scope="module")
def off_loop() -> Iterator[OffLoop]:
    made = OffLoop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def text(off_loop: OffLoop) -> ModelText:
    return ModelText(OWN_MODEL, off_loop)


def encode(text: ModelText, said: str) -> list[int]:
    return asyncio.run(text.encode(said, add_special_tokens=True))


@given(said=st.text(max_size=60))
def test_our_own_tokenizer_loses_nothing(text: ModelText, said: str) -> None:
    assert text.decode(encode(text, said)) == said


@given(said=st.text("aé漢😀\u200d\n ", max_size=40), cuts=st.integers())
def test_pieces_are_whole_characters_and_add_up(text: ModelText, said: str, cuts: int) -> None:
    ids, reader, pieces, draw = encode(text, said), text.detokenizer(), [], random.Random(cuts)
    while ids:
        count = draw.randint(1, 3)
        pieces.append(reader.feed(ids[:count]))
        del ids[:count]
    pieces.append(reader.flush())
    assert "".join(pieces) == said
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_cut_short_is_one_replacement(text: ModelText) -> None:
    ids, reader = encode(text, "漢"), text.detokenizer()
    assert len(ids) > 1 and reader.feed(ids[:-1]) == "" and reader.flush() == "\ufffd"
    assert reader.flush() == ""


def test_special_tokens_are_hidden_in_text_and_shown_by_name(text: ModelText) -> None:
    assert text.eos_token_id == 2
    assert text.detokenizer().feed([1, *encode(text, "a"), 2]) == "a"
    assert text.token_text(2) == "<|end|>"


def test_long_texts_are_encoded_off_the_loop(text: ModelText, off_loop: OffLoop) -> None:
    before = off_loop.runs
    encode(text, "short")
    assert off_loop.runs == before
    encode(text, "long " * 5000)
    assert off_loop.runs == before + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OWN_MODEL, tmp_path / "model"))


def test_truncation_that_a_tokenizer_was_saved_with_does_not_count(
    folder: Path, off_loop: OffLoop
) -> None:
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(saved))
    assert len(encode(ModelText(folder, off_loop), "a b c d e f g h")) > 4


@pytest.mark.parametrize(
    "name, content, error",
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json is no JSON object"),
        ("chat_template.jinja", "{% if %}", "the chat template does not parse"),
    ],
)
def test_bad_folders(
    folder: Path, off_loop: OffLoop, name: str, content: str | None, error: str
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=error):
        ModelText(folder, off_loop)


@pytest.mark.parametrize(
    "template", ["T", [{"name": "default", "template": "T"}, {"name": "rag", "template": "R"}]]
)
def test_a_template_in_the_configuration(folder: Path, off_loop: OffLoop, template: object) -> None:
    (folder / "chat_template.jinja").unlink()
    config = {"chat_template": template, "eos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    text = ModelText(folder, off_loop)
    assert text.template is not None and text.template.render([]) == "T"
    assert text.eos_token_id == 2


def test_a_model_without_a_template(folder: Path, off_loop: OffLoop) -> None:
    (folder / "chat_template.jinja").unlink()
    assert ModelText(folder, off_loop).template is None
