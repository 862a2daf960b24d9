"""A model's folder: its tokenizer, special tokens and template; text to ids and back."""

import asyncio
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import DecodeStream

from dynamo_router.base.errors import ConfigError, InvalidRequestError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.processor import Detokenizer, ModelText, PieceCache
from dynamo_router.frontend.processor.tokenizer import Decoding
from dynamo_router.process.off_loop import OffLoop


@pytest.fixture(scope="module")
def text(off_loop: OffLoop) -> ModelText:
    return ModelText(OWN_MODEL, off_loop)


def encode(text: ModelText, said: str) -> list[int]:
    ids: list[int] = asyncio.run(text.encode(said, add_special_tokens=True)).tolist()
    return ids


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


@given(
    parts=st.lists(st.sampled_from(["漢", "😀", "a", b"\xe6", b"\xf0\x9f", b"\xbf", b"\xff"])),
    cuts=st.integers(),
)
def test_bytes_that_are_no_characters_are_decoded_as_in_one_go(
    text: ModelText, parts: list[str | bytes], cuts: int
) -> None:
    whole = b"".join(part.encode() if isinstance(part, str) else part * 9 for part in parts)
    ids, reader, draw, pieces = byte_ids(whole), text.detokenizer(), random.Random(cuts), ""
    while ids:
        count = draw.randint(1, 5)
        pieces += reader.feed(ids[:count])
        del ids[:count]
    pieces += reader.flush()
    # A run of broken bytes may be cut at another place, and then shows as more or fewer signs.
    assert squeezed(pieces) == squeezed(whole.decode(errors="replace"))


def squeezed(said: str) -> str:
    return re.sub("\ufffd+", "\ufffd", said)


def byte_ids(data: bytes) -> list[int]:
    """One id for each byte, as the bundled byte-level tokenizer has them."""
    vocab = json.loads((OWN_MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the rest is moved behind them
    names = {byte: chr(byte) for byte in shown}
    names |= {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in shown)}
    return [vocab[names[byte]] for byte in data]


@pytest.mark.parametrize("kind", ["special", "broken"])
def test_a_step_decodes_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (broken,) = byte_ids(b"\xbf")
    steps = restarts = 0

    class Stream:
        def __init__(self, skip_special_tokens: bool) -> None:
            nonlocal restarts
            self._stream, self._held = DecodeStream(skip_special_tokens=skip_special_tokens), 0
            restarts += 1

        def step(self, tokenizer: Tokenizer, token_id: int) -> str | None:
            nonlocal steps
            steps += 1
            piece = self._stream.step(tokenizer, token_id)
            self._held = 0 if piece else self._held + 1
            assert self._held <= 16
            return piece

    monkeypatch.setattr("dynamo_router.frontend.processor.tokenizer.DecodeStream", Stream)
    # What reads answers of a tokenizer whose decoder is not that of bytes alone.
    reader = Detokenizer(Decoding(Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))))
    for _ in range(1000):
        reader.feed([2 if kind == "special" else broken])
    if kind == "special":
        assert steps == 0
    else:
        assert restarts > 1000 / 16


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
        ("tokenizer.json", "{}", "/tokenizer.json is no tokenizer"),
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


def test_a_text_that_ends_a_thread_of_the_library_is_refused(
    tmp_path: Path, off_loop: OffLoop, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where a token takes the white space behind it, and white space that is a token what is before
    it, the library has a place twice: its error is no Exception. Then all is as it was."""
    folder = tmp_path / "model"
    shutil.copytree(OWN_MODEL, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<r>", rstrip=True), AddedToken("\n\n", lstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = ModelText(folder, off_loop, PieceCache(1 << 20))
    before = encode(text, "the of")
    for longer in ("", "the of " * 200, "the of " * 2000):  # on the loop, and in two ways off it
        with pytest.raises(InvalidRequestError, match="cannot be tokenized: AddedVocabulary"):
            encode(text, f"{longer}a <r> \n\n b")
        assert encode(text, f"{longer}a <r> b")
    assert encode(text, "the of") == before
    assert "panicked" in capfd.readouterr().err
