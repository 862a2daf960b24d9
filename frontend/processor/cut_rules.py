"""Where a tokenizer's text may be cut so that its pieces, encoded by themselves, make the ids of
the whole. Read off tokenizer.json, once; what is not known there makes no cut.

Of the library's steps only the split at added tokens sees more than one stretch of text. So a text
can be cut before an *atom*: an added token that no other one runs into. And a stretch can be cut
between a letter and a *stop*, such as a blank or a bracket, where the known expressions that make
words of text do: none of them has a letter and then a stop in one word, and none looks behind; and
a word that ends in a letter ends there whether a stop follows or nothing. (It is for what comes
after white space that they look ahead.) What follows makes ids of each word by itself.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from string import punctuation
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer

from ._cuts import Cutter

BLANK = " "
STOPS = " \n,.\u3001\u3002\uff0c"
"""What Cutter knows of; all of them stand for themselves in Unicode's form NFC."""
MORE_STOPS = "\t\r" + "".join(sorted({*punctuation} - {*STOPS, "'"}))
"""Stops with all of these, but for those that an added token has behind a letter. An apostrophe is
none: there are words that go on with it."""


class CutRules(NamedTuple):
    """`stops` is empty where no stretch may be cut; `reason`: why there is no cut at all."""

    atoms: tuple[str, ...] = ()
    stops: str = ""
    reason: str = ""


class _Added(msgspec.Struct):
    """An added token."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


class _File(msgspec.Struct):
    """Of tokenizer.json what decides on cuts."""

    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    model: "_Model" = msgspec.field(default_factory=lambda: _Model())


class _Model(msgspec.Struct):
    type: str = "BPE"
    dropout: float | None = None
    alpha: float | None = None
    nbest_size: int | None = None


_NORMALIZERS = frozenset(
    "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip"
    " StripAccents".split()
)
"""Each sees one stretch between added tokens at a time."""
_PRE_TOKENIZERS = frozenset(
    "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Split"
    " UnicodeScripts Whitespace WhitespaceSplit".split()
)
"""So do these. Metaspace may treat the very first stretch in a way of its own; but a piece in the
middle begins with an atom or with a blank, before which it adds nothing."""
_POST_PROCESSORS = frozenset(
    "BertProcessing ByteLevel RobertaProcessing TemplateProcessing".split()
)
_MODELS = frozenset(("BPE", "Unigram", "WordLevel", "WordPiece"))
_BY_CHARACTER = frozenset(
    "BertNormalizer Lowercase NFC NFD NFKC NFKD Nmt Precompiled StripAccents".split()
)
"""Normalizers that change no character because of what stands behind a blank, or before one."""

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = frozenset(
    {
        # GPT-2
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # GPT-4 and Llama 3 (digits by three), Qwen 2 (one by one)
        *(
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
            + _BLANKS
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
        # Qwen 3.5
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
        # GPT-4o, gpt-oss, Llama 4
        *(
            rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{endings}|"
            rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{endings}|"
            rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
            for digits in (r"\p{N}{1,3}", r"\p{N}")
            for endings in (f"{_ENDINGS}?", "")
        ),
        # DeepSeek V3
        '[!"'
        r"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
    }
)
_NO_WORDS = frozenset((r"\p{N}{1,3}", r"\p{N}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"))
"""Expressions that may come before: a stop is in none of their matches, and they look nowhere."""


def read_cut_rules(raw: bytes, tokenizer: Tokenizer) -> CutRules:
    """Of the tokenizer that was read from these bytes of a tokenizer.json."""
    try:
        file = msgspec.json.decode(raw, type=_File)
    except msgspec.DecodeError as error:
        return CutRules(reason=f"tokenizer.json is of an unknown form: {error}")
    model = file.model
    for kind, known, found in (
        ("normalizer", _NORMALIZERS, _types(file.normalizer, "normalizers")),
        ("pre-tokenizer", _PRE_TOKENIZERS, _types(file.pre_tokenizer, "pretokenizers")),
        ("post-processor", _POST_PROCESSORS, _types(file.post_processor, "processors")),
        ("model", _MODELS, [model.type]),
    ):
        for name in found:
            if name not in known:
                return CutRules(reason=f"the {kind} {name} is not known")
    if model.dropout or model.alpha or model.nbest_size:
        return CutRules(reason="the model draws its ids at random")
    for step in _steps(file.post_processor, "processors"):
        if sum("Sequence" in each for each in step.get("single", [{"Sequence": {}}])) != 1:
            return CutRules(reason="the post-processor has the text in it not just once")
    stops = _stops(file, tokenizer)
    atoms = _atoms(file.added_tokens)
    reason = "" if atoms or stops else "no added token, and no gap between words, is a sure cut"
    return CutRules(atoms, stops, reason)


def _steps(part: dict[str, Any] | None, key: str) -> Iterator[dict[str, Any]]:
    """A part of the file, or those that it is a sequence of."""
    if part is None:
        return
    if part.get("type") == "Sequence":
        for each in part.get(key, ()):
            yield from _steps(each, key)
    else:
        yield part


def _types(part: dict[str, Any] | None, key: str) -> list[str]:
    return [str(step.get("type")) for step in _steps(part, key)]


# Atoms


def _atoms(added: list[_Added]) -> tuple[str, ...]:
    """The added tokens before which a text can be cut wherever they stand in it."""
    found = {
        token.content
        for token in added
        if token.content[:1].isascii()
        and not (token.content[:1].isalnum() or token.content[:1].isspace())
        and token.content[:1] not in ("", "_")
        and not (token.single_word or token.lstrip or token.normalized)
    }
    first = {content[0] for content in found}
    begins: dict[str, set[str]] = {}
    for content in found:
        for begin in accumulate(content):
            begins.setdefault(begin, set()).add(content)
    for token in added:
        if token.normalized:
            continue  # looked for in what the others leave
        content = token.content
        # The longest token at a place counts: another one may strip white space before it.
        for at in range(0 if token.lstrip or token.single_word else 1, len(content)):
            if content[at] in first:
                rest = content[at:]
                # Within this token, or run into by its end.
                found -= {begin for begin in accumulate(rest) if begin in found}
                found -= begins.get(rest, set())
    return tuple(sorted(found))


# Stops


def _stops(file: _File, tokenizer: Tokenizer) -> str:
    stops = min(_stops_of_normalizer(file, tokenizer), _stops_of_words(file), key=len)
    if not stops:
        return ""
    gaps, more = Cutter((), stops, 1, 1), set(MORE_STOPS if stops == STOPS else ())
    for token in file.added_tokens:
        content = token.content
        if token.single_word or (token.rstrip and content[-1:].isalpha()):
            return ""
        if token.normalized:
            if tokenizer.normalizer is not None:
                content = tokenizer.normalizer.normalize_str(content)
            if any(character in stops for character in content[1:]):
                return ""
            more -= {*content[1:]}
        elif gaps.cuts(content, 0, 0, len(content)):
            return ""
        else:
            more -= {then for before, then in pairwise(content) if before.isalpha()}
    return stops + "".join(sorted(more))


def _stops_of_normalizer(file: _File, tokenizer: Tokenizer) -> str:
    """Those at which it can work on both sides by themselves."""
    stops = STOPS
    for step in _steps(file.normalizer, "normalizers"):
        name = step.get("type")
        blanks = step.get("pattern") == {"Regex": " {2,}"}  # a gap's blanks are all behind the cut
        if name != "NFC":
            stops = BLANK
        if not (
            name in _BY_CHARACTER
            or (name == "Replace" and blanks and step.get("content") == " ")
            or (name == "Strip" and not step.get("strip_left", True))
        ):
            return ""
    if file.normalizer is not None:
        normalize = tokenizer.normalizer.normalize_str
        if any(normalize(f"{letter} b") != f"{normalize(letter)} b" for letter in "aAzZгあ字각"):
            return ""
    return stops


def _stops_of_words(file: _File) -> str:
    """Those at which a word ends behind any letter."""
    steps = list(_steps(file.pre_tokenizer, "pretokenizers"))
    first = [step for step in steps if step.get("prepend_scheme") == "first"]
    known = BLANK if first else STOPS  # a piece would begin with what only a text is to begin with
    for step in steps:
        name, pattern = step.get("type"), step.get("pattern")
        if name == "Digits":
            continue
        if name == "Split" and isinstance(pattern, dict):
            how = step.get("behavior"), bool(step.get("invert"))
            expression = _escaped(pattern.get("Regex"))
            if expression in _NO_WORDS and how == ("Isolated", False):
                continue
            whole = how in (("Isolated", False), ("Removed", True))
            return known if whole and expression in _WORDS else ""
        if name == "ByteLevel" and step.get("use_regex", True):  # the expression of GPT-2
            return BLANK if step.get("add_prefix_space", True) else known
        if name == "Metaspace":
            return BLANK if step.get("split", True) and step.get("replacement") == "▁" else ""
        return BLANK if name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") else ""
    return ""


def _escaped(expression: object) -> str:
    """The same with line ends as most write them."""
    return str(expression).replace("\r", r"\r").replace("\n", r"\n")
