"""Encoding by pieces: the ids of the whole text, for each kind of tokenizer; what is encoded."""

import asyncio
import gc
import json
import random
import tracemalloc
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.frontend.processor import NO_TENANT, ChatTemplate, PieceCache, Tenant
from dynamo_router.frontend.processor.cut_rules import (
    MORE_STOPS,
    STOPS,
    CutRules,
    read_cut_rules,
)
from dynamo_router.frontend.processor.encoder import (
    LEAST_CHARS,
    MOST_CHARS,
    STEP_CHARS,
    Encoder,
)
from dynamo_router.frontend.processor.tokenizer import encode_texts
from dynamo_router.process.off_loop import OffLoop

CORPUS = [
    "The quick brown fox, it's the one that they'll see, jumps over 12345 lazy dogs.\n\n",
    "def walk(tree):\n    for each in tree:\n\tyield each  # naïve café ΑΣ Σίσυφος\r\n",
    "漢字を書く、そして読む。한국어 텍스트, русский текст 😀👩‍👧 é \u0301\u3099 a\u200db",
    "user assistant system think tool_call <div> </div> [INST] A.B x/y _under_score_ ___",
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]"]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST = pre_tokenizers.Metaspace("▁", "first")
NEW = {"type": "New"}
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_after(*steps: Any) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, byte_level])


def bpe(pre: Any, normalizer: Any = None, added: list[Any] | None = None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.add_tokens(added or [])
    return made


def sentence_piece(scheme: str, *, cuts: bool = True, unigram: bool = False) -> Tokenizer:
    model: Any = models.Unigram() if unigram else models.BPE(unk_token="<unk>", fuse_unk=True)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, cuts)
    if unigram:
        made.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>",
            show_progress=False,
        )  # fmt: skip
    else:
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<unk>", *SPECIAL], show_progress=False
        )
    made.train_from_iterator(CORPUS * 3, trainer)
    return made


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", *SPECIAL]
    made.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    ids = {name: made.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, list(ids.items()))
    return made


def added(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, **flags})


def llama_2() -> Tokenizer:
    made = sentence_piece("always")
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.pre_tokenizer = None
    return made


def byte_fallback(*, unigram: bool) -> Tokenizer:
    """Of a small alphabet: all other characters are tokens of their bytes."""
    letters = [(f"{letter}", -float(n)) for n, letter in enumerate("▁abcdefghiklmnoprstuvwxy", 2)]
    byte_tokens = [(f"<0x{byte:02X}>", -50.0) for byte in range(256)]
    vocab = [("<unk>", 0.0), *letters, *byte_tokens, ("▁the", -1.0), ("▁fox", -1.5), ("ab", -1.7)]
    model: Any = models.Unigram(vocab, unk_id=0, byte_fallback=True)
    if not unigram:
        merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
        ids = {name: n for n, (name, _) in enumerate([*vocab, ("▁a", 0.0), ("▁ab", 0.0)])}
        model = models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", True)
    made.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIAL])
    return made


def normalized(*steps: Any) -> Tokenizer:
    """Words of GPT-2 behind these normalizers."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bpe(byte_level, normalizers.Sequence(list(steps)))


MAKERS: dict[str, Any] = {
    "gpt-2": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt-2, prefixed": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "gpt-2, split": lambda: bpe(bytes_after(split(GPT_2, "removed", True))),
    "gpt-2, then metaspace first": lambda: bpe(bytes_after(split(GPT_2), FIRST)),
    "gpt-2, its special token normalized": lambda: bpe(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        added=[added("<|endoftext|>", normalized=True), added("fox jumps", normalized=True)],
    ),
    "llama 3": lambda: bpe(bytes_after(split(LLAMA_3))),
    "qwen": lambda: bpe(
        bytes_after(split(LLAMA_3.replace("{1,3}", ""))), normalizers.NFC(), [added("<think>")]
    ),
    "gpt-4o": lambda: bpe(bytes_after(split(GPT_4O))),
    "deepseek": lambda: bpe(
        bytes_after(split(r"\p{N}{1,3}"), split(HAN), split(DEEPSEEK)),
        None,
        [added("<\uff5cUser\uff5c>")],
    ),
    "digits first": lambda: bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "metaspace always": lambda: sentence_piece("always"),
    "metaspace first": lambda: sentence_piece("first"),
    "metaspace never": lambda: sentence_piece("never"),
    "metaspace, whole": lambda: sentence_piece("first", cuts=False),
    "llama 2": llama_2,
    "unigram": lambda: sentence_piece("always", unigram=True),
    "bert": word_piece,
    "byte fallback": lambda: byte_fallback(unigram=False),
    "unigram, byte fallback": lambda: byte_fallback(unigram=True),
    "looks across blanks": lambda: normalized(normalizers.Replace(Regex(r"x (?=f)"), "q")),
    "joins all space": lambda: normalized(normalizers.Replace(Regex(r"\s+"), " ")),
    "drops blanks": lambda: normalized(normalizers.Replace(" ", "")),
    "strips both ends": lambda: normalized(normalizers.NFC(), normalizers.Strip()),
    "small letters": lambda: normalized(normalizers.NFKC(), normalizers.Lowercase()),
    "tokens that strip": lambda: bpe(
        bytes_after(split(LLAMA_3)),
        None,
        [
            added("<|left|>", lstrip=True),
            added("<|right|>", rstrip=True),
            added("<|both|>", lstrip=True, rstrip=True),
        ],
    ),
    "a stripping word": lambda: bpe(
        bytes_after(split(LLAMA_3)), None, [added("xfox", rstrip=True)]
    ),
    "single words": lambda: bpe(
        bytes_after(split(LLAMA_3)),
        None,
        [added("fox", single_word=True), added(" dog", single_word=True)],
    ),
    "tokens within tokens": lambda: bpe(
        bytes_after(split(LLAMA_3)),
        None,
        [
            added("<|im_end|>\n"),
            added("x<s"),
            added("<|<s>|>"),
            added("]</"),
            added("over lazy"),
            added("  "),
            added("\n\n"),
        ],
    ),
}
MOST = STOPS + "".join(sorted({*MORE_STOPS} - {*"_|>]"}))
"""All but those in SPECIAL behind a letter."""
RULES: dict[str, tuple[bool, str]] = {
    # whether there are atoms, and at which stops words end
    "gpt-2": (True, MOST),
    "gpt-2, prefixed": (True, " "),
    "gpt-2, split": (True, MOST),
    "gpt-2, then metaspace first": (True, " "),
    "gpt-2, its special token normalized": (True, ""),
    "llama 3": (True, MOST),
    "qwen": (True, MOST),
    "gpt-4o": (True, MOST),
    "deepseek": (True, MOST),
    "digits first": (True, MOST),
    "metaspace always": (True, " "),
    "metaspace first": (True, " "),
    "metaspace never": (True, " "),
    "metaspace, whole": (True, ""),
    "llama 2": (True, ""),
    "unigram": (True, " "),
    "bert": (True, " "),
    "byte fallback": (True, " "),
    "unigram, byte fallback": (True, " "),
    "looks across blanks": (True, ""),
    "joins all space": (True, ""),
    "drops blanks": (True, ""),
    "strips both ends": (True, ""),
    "small letters": (True, " "),
    "tokens that strip": (True, MOST),
    "a stripping word": (True, ""),
    "single words": (True, ""),
    "tokens within tokens": (True, ""),
}


@pytest.fixture(scope="module", params=list(MAKERS))
def tokenizer(request: pytest.FixtureRequest) -> tuple[str, Tokenizer, CutRules]:
    made = MAKERS[request.param]()
    return request.param, made, read_cut_rules(made.to_str().encode(), made)


PIECES = st.sampled_from(
    [
        *SPECIAL,
        "<|im_end|>\n",
        "<\uff5cUser\uff5c>",
        *"<>|[]/ \n\r\t.,'",
        *'"(){}=_-:;#*+!?@\\^`~$%&',
        *(f"<|{name}|>" for name in ("left", "right", "both", "endoftext")),
        "<|<s>|>",
        "x<s",
        "]</",
        "<think>",
        *" the fox dog xfox jumps over lazy don't it's he'LL 12 3456 naïve ΑΣ".split(" "),
        *"漢字 、 。 \uff0c 한국 текст".split(" "),
        *(f" {word}" for word in "the fox dog jumps over lazy A word\n".split(" ")),
        *"😀\u0301\u3099\u200d\ufb01\xa0\u3000\u2028\x85\x1c\x00",
        "e\u0301",
        "  ",
        "\n\n",
        "\r\n",
        "   \n  ",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join)


def encoded(encoder: Encoder, text: str, *, special: bool = False) -> list[int]:
    ids: list[int] = asyncio.run(
        encoder.encode(text, NO_TENANT, add_special_tokens=special)
    ).tolist()
    return ids


def test_what_is_known_of_each_tokenizer(tokenizer: tuple[str, Tokenizer, CutRules]) -> None:
    name, _, rules = tokenizer
    assert (bool(rules.atoms), rules.stops) == RULES[name] and not rules.reason


@settings(deadline=None, max_examples=30)  # for each of many tokenizers
@given(
    text=TEXTS, other=TEXTS, least=st.integers(1, 9), special=st.booleans(), at=st.integers(0, 99)
)
def test_pieces_make_the_ids_of_the_whole(
    tokenizer: tuple[str, Tokenizer, CutRules],
    off_loop: OffLoop,
    text: str,
    other: str,
    least: int,
    special: bool,
    at: int,
) -> None:
    """Each text twice, then a text that has much in common with it: all that is found was kept for
    another place."""
    _, whole, rules = tokenizer
    encoder = Encoder(
        partial(encode_texts, whole), rules, off_loop, PieceCache(1 << 20), least, least
    )
    at = min(at, len(text))
    for each in (text, text, text[:at] + other + text[at:], other + text[:at], text[at:]):
        assert (
            encoded(encoder, each, special=special)
            == whole.encode(each, add_special_tokens=special).ids
        )


@settings(deadline=None, max_examples=30)  # for each of many tokenizers
@given(text=TEXTS, others=st.lists(TEXTS, min_size=1, max_size=3), least=st.integers(1, 9))
def test_a_text_can_be_cut_at_its_last_cut_whatever_follows(
    tokenizer: tuple[str, Tokenizer, CutRules],
    off_loop: OffLoop,
    text: str,
    others: list[str],
    least: int,
) -> None:
    _, whole, rules = tokenizer
    encoder = Encoder(
        partial(encode_texts, whole), rules, off_loop, PieceCache(1 << 20), least, least
    )
    at = encoder.last_cut(text + others[0], len(text))
    assert at == encoder.last_cut(text, len(text)) and 0 <= at <= len(text)
    begun = encoded(encoder, text[:at]) if at else []
    for other in others:
        rest = encoded(encoder, text[at:] + other)
        assert begun + rest == whole.encode(text + other, add_special_tokens=False).ids


UNICODE = (
    "naïve 👩‍👧‍👦 e\u0301 ΑΣ 漢字、한 \u1112\u1161\u11ab, ﷺ \U0001f1e9\U0001f1ea a\u0327\u0301b"
)


def test_a_text_parted_at_each_of_its_characters(
    tokenizer: tuple[str, Tokenizer, CutRules], off_loop: OffLoop
) -> None:
    """A turn may end, and an edit begin, within what is shown as one character."""
    _, whole, rules = tokenizer
    encoder = Encoder(partial(encode_texts, whole), rules, off_loop, PieceCache(1 << 20), 1, 1)
    for at in range(len(UNICODE) + 1):
        for text in (UNICODE[:at], UNICODE[at:], f"{UNICODE[:at]}{SPECIAL[0]}{UNICODE[at:]}"):
            assert encoded(encoder, text) == whole.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def llama(off_loop: OffLoop) -> Tokenizer:
    made: Tokenizer = MAKERS["llama 3"]()
    return made


def new_encoder(tokenizer: Tokenizer, off_loop: OffLoop, most: int = 1 << 20) -> Encoder:
    rules = read_cut_rules(tokenizer.to_str().encode(), tokenizer)
    return Encoder(partial(encode_texts, tokenizer), rules, off_loop, PieceCache(most))


def prose(chars: int, seed: int = 0) -> str:
    draw, words = (
        random.Random(seed),
        "the of and it is you, that\nfor on are. With they 漢字、".split(" "),
    )
    return "".join(f" {draw.choice(words)}{draw.randint(0, 9)}a" for _ in range(chars // 6))[:chars]


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def newly_encoded(encoder: Encoder, text: str, tenant: Tenant = NO_TENANT) -> int:
    """Characters that the tokenizer has seen; the ids are those of the whole text."""
    before = encoder._cache.encoded_chars
    ids = asyncio.run(encoder.encode(text, tenant, add_special_tokens=False)).tobytes()
    assert [ids] == encoder._encode([text], False)
    return encoder._cache.encoded_chars - before


TAIL = LEAST_CHARS + MOST_CHARS
"""Characters around a change that are in pieces with it."""


def test_a_turn_costs_what_is_new_in_it(llama: Tokenizer, off_loop: OffLoop) -> None:
    encoder = new_encoder(llama, off_loop)
    prompt = turn("system", "help") + turn("user", prose(30_000))
    newly_encoded(encoder, prompt + "<|im_start|>assistant\n<think>\n")
    for number in range(5):
        prompt += turn("assistant", "ok") + turn("user", prose(4400, number))
        assert newly_encoded(encoder, prompt + "<|im_start|>assistant\n<think>\n") < 4400 + TAIL
    cache = encoder._cache
    assert cache.size < 4 * len(prompt)
    assert cache.found_chars > 5 * 30_000


def test_an_edit_costs_the_message_that_changed(llama: Tokenizer, off_loop: OffLoop) -> None:
    encoder = new_encoder(llama, off_loop)
    turns = [turn("user", prose(8000, number)) for number in range(20)]
    newly_encoded(encoder, "".join(turns))
    turns[3] = turn("user", prose(1234, 99))  # an edit
    assert newly_encoded(encoder, "".join(turns)) < 1234 + 2 * TAIL
    del turns[7]  # one that is dropped
    assert newly_encoded(encoder, "".join(turns)) < 2 * TAIL
    assert newly_encoded(encoder, turn("system", "It is 12:34.") + "".join(turns)) < 2 * TAIL


def test_an_edit_in_a_long_message_costs_its_surroundings(
    llama: Tokenizer, off_loop: OffLoop
) -> None:
    encoder, text = new_encoder(llama, off_loop), prose(100_000)
    newly_encoded(encoder, text)
    assert newly_encoded(encoder, text[:20_000] + " something else" + text[20_000:]) < 30_000
    assert newly_encoded(encoder, text + prose(1000, 5)) < 1000 + TAIL


def test_a_tenant_finds_nothing_of_another_namespace(llama: Tokenizer, off_loop: OffLoop) -> None:
    encoder, text = new_encoder(llama, off_loop), prose(20_000)
    assert newly_encoded(encoder, text, Tenant("a", 1)) == len(text)
    assert newly_encoded(encoder, text, Tenant("a", 2)) == len(text)
    assert newly_encoded(encoder, text, Tenant("b", None)) == len(text)
    assert newly_encoded(encoder, text, Tenant("b", 1)) < TAIL


def test_models_share_the_bytes_and_no_ids(llama: Tokenizer, off_loop: OffLoop) -> None:
    cache, text = PieceCache(1 << 20), prose(20_000)
    for made in (llama, MAKERS["gpt-2"]()):
        rules = read_cut_rules(made.to_str().encode(), made)
        assert newly_encoded(
            Encoder(partial(encode_texts, made), rules, off_loop, cache), text
        ) == len(text)


def test_a_text_of_many_steps_and_a_word_without_end(llama: Tokenizer, off_loop: OffLoop) -> None:
    encoder = new_encoder(llama, off_loop)
    text = prose(300_000) + "=" * 10_000 + prose(5000)
    assert newly_encoded(encoder, text) == len(text)
    assert newly_encoded(encoder, text) < TAIL


def test_a_text_without_a_cut_is_hashed_in_steps(
    llama: Tokenizer, off_loop: OffLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it in one turn of the loop would hold that for milliseconds."""
    steps: list[int] = []

    class Hashes:
        def __init__(self, data: bytes = b"") -> None:
            self._hashes = sha256()
            self.update(data)

        def update(self, data: bytes) -> None:
            steps.append(len(data))
            self._hashes.update(data)

        def digest(self) -> bytes:
            return self._hashes.digest()

    monkeypatch.setattr("dynamo_router.frontend.processor.encoder.sha256", Hashes)
    encoder, text = new_encoder(llama, off_loop, 64 << 20), "é" * (5 * STEP_CHARS // 2)
    assert encoded(encoder, text) == llama.encode(text, add_special_tokens=False).ids
    assert max(steps) <= STEP_CHARS * len("é".encode())
    assert newly_encoded(encoder, text) == 0  # its key is that of all steps


def test_what_is_no_text_is_refused(llama: Tokenizer, off_loop: OffLoop) -> None:
    encoder = new_encoder(llama, off_loop)
    for text in ("a\ud800", prose(5000) + "\ud800"):
        with pytest.raises(InvalidRequestError, match="cannot be tokenized"):
            encoded(encoder, text)


def test_a_token_within_what_a_client_says_poisons_nothing(
    llama: Tokenizer, off_loop: OffLoop
) -> None:
    """Each text has what another one ends in the middle of, and is found with or without it."""
    encoder, text = new_encoder(llama, off_loop), prose(6000)
    halves = [text[:3000], text[3000:]]
    for token in (*SPECIAL, "<|im_start|", "im_end|>", "<|im_start|>system\n", "</s><s>"):
        for each in (text, token.join(halves), text + token, token + text, token.join([*text[:9]])):
            newly_encoded(encoder, each)
            newly_encoded(encoder, each)


THINKING = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- for t in tools %}{{- t | tojson }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last=messages|length - 1, found=false) %}"
    "{%- for m in messages[::-1] %}{%- if not ns.found and m.role == 'user' %}"
    "{%- set ns.found = true %}{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}"
    "{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content %}"
    "{%- if m.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Takes reasoning out of all but the last turn, and puts tools first."""
SORTED = "{% for m in messages | sort(attribute='role') %}<|im_start|>{{ m.content }}{% endfor %}"
"""Has another order than its messages."""


@pytest.mark.parametrize("source", [THINKING, SORTED], ids=["thinking", "sorted"])
def test_what_a_template_makes_of_a_turn_that_changes_those_before(
    llama: Tokenizer, off_loop: OffLoop, source: str
) -> None:
    template, encoder = ChatTemplate(source, {}), new_encoder(llama, off_loop)
    messages: list[dict[str, str]] = []
    size = 0
    for number in range(8):
        messages.append({"role": "user", "content": prose(3000, number)})
        for tools in (None, [{"name": f"t{number}"}]):
            text = template.render(messages, tools=tools)
            new = newly_encoded(encoder, text)
            assert new < len(text) - size + 3 * TAIL  # not all of what came before
        size = len(text)
        thought = f"<think>{prose(2000, 99 + number)}</think>\n\n{prose(1000, 50 + number)}"
        messages.append({"role": "assistant", "content": thought})


def test_memory_of_a_thousand_conversations(off_loop: OffLoop) -> None:
    """What is counted is what is taken, and at most 4 bytes a character that is kept."""
    chars, tenants = 4400, 1_000

    def encode(texts: Sequence[str], special: bool, most: int | None) -> list[bytes]:
        return [b"\0\0\0\0" * (len(text) // 4) for text in texts]

    cache = PieceCache(1 << 30)
    encoder = Encoder(encode, CutRules(("<|im_start|>",), STOPS), off_loop, cache)
    text = prose(chars)

    async def all_of_them() -> None:
        for number in range(tenants):
            conversation = f"{number:06}{text}"
            await encoder.encode(conversation, Tenant("a", number), add_special_tokens=False)

    gc.collect()
    tracemalloc.start()
    try:
        asyncio.run(all_of_them())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = cache.encoded_chars
    assert kept >= tenants * chars * 0.9 and not cache.dropped
    assert taken < cache.size < 4 * kept


TWICE = json.loads(processors.TemplateProcessing("$A $A", None, []).__getstate__())


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [NEW]}}, "pre-tokenizer New"),
        ({"normalizer": NEW}, "normalizer New"),
        ({"post_processor": NEW}, "post-processor New"),
        ({"post_processor": TWICE}, "once"),
        ({"model": NEW}, "model New"),
        ({"model": {"type": "BPE", "dropout": 0.1}}, "at random"),
        ({"pre_tokenizer": None, "added_tokens": []}, "no added token"),
        ({"added_tokens": [{"content": 5}]}, "unknown form"),
    ],
)
def test_what_is_not_known_is_not_cut(
    llama: Tokenizer, off_loop: OffLoop, change: dict[str, Any], reason: str
) -> None:
    raw = json.dumps({**json.loads(llama.to_str()), **change}).encode()
    rules = read_cut_rules(raw, llama)
    assert reason in rules.reason
    encoder = Encoder(partial(encode_texts, llama), rules, off_loop, PieceCache(1 << 20))
    assert newly_encoded(encoder, prose(5000)) == 0 and reason in encoder.reason
