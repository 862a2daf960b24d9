"""The files that a card names: found, and refused where they are not what the card says."""

import json
import shutil
from pathlib import Path

import pytest

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.runtime.components import EndpointName
from dynamo_router.runtime.kv_stores import Entry
from dynamo_router.workers.records import (
    ModelCard,
    WrongFileError,
    checked_folder,
    decode_card,
    encode_card,
    model_files,
)

NAME = EndpointName("dynamo", "backend", "generate")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OWN_MODEL, tmp_path / "model"))


def card_of(folder: Path) -> ModelCard:
    _, key, value = encode_card(ModelCard("m", 16), NAME, 1, model_files(folder))
    return decode_card(Entry(key, value, 1))


def test_a_folder_is_as_its_card_says(folder: Path) -> None:
    card = card_of(folder)
    assert [file.part for file in card.files] == ["model_info", "tokenizer", "prompt_formatter"]
    assert checked_folder(card.files) == folder


def test_another_tokenizer_than_the_cards_is_refused(folder: Path) -> None:
    card = card_of(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(WrongFileError, match=r"tokenizer\.json has 2 bytes"):
        checked_folder(card.files)


def test_a_tokenizer_of_the_same_length_is_told_apart_by_its_checksum(folder: Path) -> None:
    files = model_files(folder)
    files["tokenizer"]["hf_tokenizer_json"]["checksum"] = "blake3:" + "0" * 64
    _, key, value = encode_card(ModelCard("m", 16), NAME, 1, files)
    with pytest.raises(WrongFileError, match=r"another checksum|cannot be checked"):
        checked_folder(decode_card(Entry(key, value, 1)).files)


def test_a_checksum_that_nobody_can_check_is_refused(folder: Path) -> None:
    files = model_files(folder)
    files["tokenizer"]["hf_tokenizer_json"]["checksum"] = "md5:0"
    _, key, value = encode_card(ModelCard("m", 16), NAME, 1, files)
    with pytest.raises(WrongFileError, match="no blake3"):
        checked_folder(decode_card(Entry(key, value, 1)).files)


def test_files_may_be_in_another_folder_here(folder: Path, tmp_path: Path) -> None:
    card = card_of(folder)
    here = folder.rename(tmp_path / "here")
    with pytest.raises(WrongFileError, match="cannot be read"):
        checked_folder(card.files)
    assert checked_folder(card.files, here) == here


@pytest.mark.parametrize(
    ("named", "reason"),
    [({}, "names no tokenizer"),
     ({"tokenizer": {"tik_token_model": {"path": "/m/qwen.tiktoken"}}}, "of a kind"),
     ({"tokenizer": "tokenizer.json"}, "names no tokenizer"),
     ({"tokenizer": {"hf_tokenizer_json": {"path": "/nowhere/tokenizer.json"}}}, "cannot be read"),
     ({"tokenizer": {"hf_tokenizer_json": {"path": "http://h/tokenizer.json"}}}, "cannot be")],
)  # fmt: skip
def test_a_card_without_a_tokenizer_is_refused(named: object, reason: str) -> None:
    _, key, value = encode_card(ModelCard("m", 16), NAME, 1)
    said = json.loads(value)
    said["card_json"].update(named)
    with pytest.raises(WrongFileError, match=reason):
        checked_folder(decode_card(Entry(key, json.dumps(said).encode(), 1)).files)
