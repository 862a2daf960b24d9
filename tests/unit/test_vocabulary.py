"""One word, one meaning: words that docs/glossary.md replaces stand in no identifier, module or
folder, and words that hide who acts become fewer.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.identifiers import identifiers, words
from support.import_graph import GENERATED, SUFFIXES
from support.places import ROOT

PRODUCT = (
    "base",
    "bench",
    "engines",
    "examples",
    "frontend",
    "indexer",
    "kv_events",
    "planner",
    "process",
    "router",
    "runtime",
    "server",
    "slots",
    "transport",
    "workers",
)
FOLDERS = (*PRODUCT, "tests")
HELP_TEXT = re.compile(r'(?<!")"(?!")([A-Z0-9][^"\n]{3,}\.)"(?!")')
UNNAMED = re.compile(
    r"^(They|Those|Of (those|them)|Such)\b|\b(somebody|nobody|whoever|told|us|ours)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Replaced:
    """A word, what to say instead, and the paths to which that does not apply."""

    instead: str
    allowed: tuple[str, ...] = ()
    within: tuple[str, ...] = ("",)  # the word is fine elsewhere

    def forbids(self, path: str) -> bool:
        return path.startswith(self.within) and not any(part in path for part in self.allowed)


HOUSE = ("tests/support/house_rules", "tests/support/import_graph", "tests/unit/test_floors")
OF_EVENTS = (
    "indexer/event_index/", "indexer/source", "kv_events/", "tests/stateful/", "tests/oracles/"
)  # fmt: skip
OF_TREE = ("indexer/tree/", "tests/instruments/")
OF_BLOCKS = (
    "engines/",
    "/bench/workbench/",
    "bench/workbench/",
    "tests/stateful/",
    "tests/integration/",
)
"""An engine's block memory."""
QUEUE = (
    "router/admission/",
    "router/decider",
    "tests/integration/test_admission",
)
WORDS = {
    # hashes
    # a type of msgpack in the one, a module of Jinja in the other
    # and ext_proc is what Envoy calls its external processing
    "ext": Replaced("external_hash",
                    ("tests/unit/indexer/wire/", "frontend/", "epp/", "server/fronts/",
                     "server/config_check", "tests/support/features/")),
    # `lazy_names` of the door
    "names": Replaced("local_hashes, sequence_hashes or external_hashes",
                      ("indexer/wire/__init__",),
                      within=("indexer/", "slots/", "engines/mocker/core/")),
    # one meaning each
    "arena": Replaced("Experiment, for policies side by side", (*OF_TREE, *OF_BLOCKS)),
    "cursor": Replaced("TreePosition in a tree, ByteReader in bytes", OF_EVENTS),
    "hold": Replaced("acquire for a reference, buffer for an event behind a gap",
                     within=("indexer/", "slots/", "workers/")),
    "idx": Replaced("number, for a worker's"),
    "lane": Replaced("timeline, for the steps an engine has before it", QUEUE),
    "room": Replaced("capacity of a container, seconds_until_free of a fleet", HOUSE),
    # the field's words
    "census": Replaced("source_list"),
    "contender": Replaced("IndexAdapter", ("bench/workbench/index/config.py", "tests/unit/bench/")),
    "contenders": Replaced("IndexAdapter"),
    "contestant": Replaced("PolicyVariant"),
    "door": Replaced("listener for what takes connections, port for where", HOUSE),
    "letter": Replaced("message", within=("kv_events/",)),
    "loan": Replaced("index transfer", within=("kv_events/", "tests/unit/kv_events/")),
    "told": Replaced("the noun: events, messages, batches", within=("kv_events/",)),
    "gate": Replaced("rwlock, read_begin and read_end, write_begin and write_end"),
    "graft": Replaced("cross_tier"),
    "healing": Replaced("event recovery"),
    "keeper": Replaced("SnapshotTask"),
    "offer": Replaced("LoadSpec", ("bench/workbench/transfer",), within=("bench/",)),
    "pace": Replaced("yield points"),
    "paced": Replaced("yield points"),
    "patience": Replaced("order_penalty_s, or a timeout"),
    "patient": Replaced("buffer_gaps"),
    "scene": Replaced("Workload", within=("bench/", "tests/unit/bench/")),
    "section": Replaced("worker_image", within=("indexer/",)),
    "shot": Replaced("TimedRequest"),
    "spared": Replaced("saved_prefill_blocks"),
    "tally": Replaced("LoadStats"),
    "tether": Replaced("child_process.die_with_parent"),
    "tethered": Replaced("child_process.die_with_parent"),
    "tidy": Replaced("compact"),
    "trail": Replaced("RequestLog"),
}  # fmt: skip
VERBS = ("holds", "offers")
"""These are no plurals."""
DIALECT = {
    "whoever": 2,
    "somebody": 4,
    "anybody": 0,
    "nobody": 12,
    "everybody": 0,
    "so many": 10,
    "so much": 1,
    "told": 27,
    "said": 28,
    "what is [a-z]+ of it": 2,
    "tells?": 50,
    "hears?": 18,
    "heard": 39,
    "owe[ds]?": 0,
    "no good": 0,
    "(somebody|nobody|anybody|everybody) else": 0,
}
"""How often the product says so, in code and in text. Write who acts, or the noun: "the caller",
"callers", "no router", "reported", "the status message". A number may only go down: lower it with
the text."""


MESSAGE_DIALECT = re.compile(
    r"\b(who|whom)(so)?ever\b|\b(some|any|no|every)(body|one)\b|\bso (many|much|few)\b"
    r"|\b(tell|say|hear)(s|ing)?\b|\b(told|said|heard|owe[ds]?|no good|ourselves)\b"
    r"|\bwhat is [a-z]+ of it\b|^(They|Those|Such)\b",
    re.IGNORECASE,
)
"""What no message to a user says: options, errors, log lines, HELP texts, `doctor`, tables."""
IN_MESSAGES = {"bench/load/chat_client.py": 1, "bench/simulation/config.py": 4,
               "bench/simulation/replicas.py": 4}  # fmt: skip
"""How many messages still do, by file; the first is a list of English words."""


def replaced(word: str, path: str) -> str | None:
    """The word itself or its singular, if it is replaced in that file."""
    for each in (word, "" if word in VERBS else word.removesuffix("s")):
        if each in WORDS and WORDS[each].forbids(path):
            return each
    return None


def violations(files: Mapping[str, Iterable[str]]) -> dict[str, dict[str, set[str]]]:
    """Replaced words, the folders they stand in, and the identifiers; by path and its names."""
    found: dict[str, dict[str, set[str]]] = {}
    for path, names in files.items():
        for name in (*names, *Path(path).parent.parts):
            for part in words(name):
                if (word := replaced(part, path)) is not None:
                    folder = Path(path).parent.as_posix()
                    found.setdefault(word, {}).setdefault(folder, set()).add(name)
    return found


@pytest.fixture(scope="module")
def files() -> dict[str, set[str]]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths = [path for path in [*paths, ROOT / "cli.py"] if path.suffix in SUFFIXES]
    written = (path for path in paths if not GENERATED.search(path.stem))
    return {path.relative_to(ROOT).as_posix(): identifiers(path) for path in written}


def test_replaced_words_are_not_used(files: dict[str, set[str]]) -> None:
    found = violations(files)
    for word, folders in found.items():
        for folder in folders:
            say = f"say {WORDS[word].instead}"
            pytest.fail(f"{folder}/ uses {word!r} in {sorted(folders[folder])}: {say}")


def test_identifiers_were_really_read(files: dict[str, set[str]]) -> None:
    assert "EventCursor" in words_of(files) or "cursor" in words_of(files)
    assert sum(map(len, files.values())) > 10_000


def words_of(files: dict[str, set[str]]) -> set[str]:
    return {word for names in files.values() for name in names for word in words(name)}


def dialect_of(text: str) -> Counter[str]:
    """The phrases of DIALECT in a text; as parts of a name too."""
    return Counter({phrase: len(_PATTERNS[phrase].findall(text)) for phrase in DIALECT})


_PATTERNS = {
    phrase: re.compile(rf"(?<![a-z]){phrase}(?![a-z])", re.IGNORECASE) for phrase in DIALECT
}


def test_words_that_hide_who_acts_become_fewer() -> None:
    counts: Counter[str] = Counter()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and not GENERATED.search(path.stem):
                counts += dialect_of(path.read_text())
    more = {phrase: (counts[phrase], most) for phrase, most in DIALECT.items()
            if counts[phrase] > most}  # fmt: skip
    assert more == {}, "say it in plain words"
    assert counts.total() > 100  # the files were really read


def test_a_phrase_is_found_in_names_and_text() -> None:
    found = dialect_of(
        'def f(told_at): """Somebody, whoever that is, said so.\nSo many of them."""'
    )
    assert +found == {"told": 1, "somebody": 1, "whoever": 1, "said": 1, "so many": 1}
    assert +dialect_of("retold unsaid = nobodies") == {}


IN_PAGES = re.compile(
    r"\b(who|whom)(so)?ever\b|\b(some|any|no|every)body\b|\bso (many|much|few)\b"
    r"|\b(told|said|heard|owe[ds]?|no good|ourselves)\b|\bwhat is [a-z]+ of it\b",
    re.IGNORECASE,
)
PAGES = [
    page for page in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md")
    if "lab" not in page.parts and page.name != "glossary.md"
]  # fmt: skip
"""Of users; lab notes stay as they were written, and the glossary names the words."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_who_acts(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if IN_PAGES.search(line)] == []


def messages_of(source: str) -> list[str]:
    """The texts of several words in Python that are no documentation, f-strings in pieces."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in documentation and " " in node.value.strip()
    ]


def test_messages_name_who_acts() -> None:
    bad: dict[str, list[str]] = {}
    read = 0
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    for path in (*paths, ROOT / "cli.py"):
        if not GENERATED.search(path.stem):
            messages = messages_of(path.read_text())
            read += len(messages)
            name = path.relative_to(ROOT).as_posix()
            bad[name] = [each for each in messages if MESSAGE_DIALECT.search(each)]
    more = {name: words for name, words in bad.items() if len(words) > IN_MESSAGES.get(name, 0)}
    assert more == {}, "name the actor, or the noun"
    assert {name: len(words) for name, words in bad.items() if words} == IN_MESSAGES
    assert read > 1000  # the files were really read


def test_messages_are_found_in_options_errors_and_logs() -> None:
    source = """
class Config:
    '''Whoever.'''
    wait_s: float = option(1.0, "Nobody waits, so they say.")
    '''what is said of it'''

def run():
    '''Tells somebody.'''
    raise ValueError(f"{name} was told {what} so many times")
"""
    found = messages_of(source)
    assert found == ["Nobody waits, so they say.", " was told ", " so many times"]
    assert all(map(MESSAGE_DIALECT.search, found))
    assert not MESSAGE_DIALECT.search("a one-to-one mapping of untold hearsay")


@pytest.mark.parametrize("path", sorted((ROOT / "server" / "metrics").glob("*.py")))
def test_help_texts_name_what_is_counted(path: Path) -> None:
    """No pronoun without its noun, nobody who is not named."""
    for text in HELP_TEXT.findall(path.read_text()):
        assert not UNNAMED.search(text), f"{path.name}: {text}"


def test_the_glossary_knows_each_word_that_replaces_another() -> None:
    """What a contributor is told to say can be looked up."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    for term in ("local_hash", "sequence_hash", "external_hash", "lane", "hold", "number", "cursor",
                 "capacity", "seconds_until_free", "rwlock", "yield points"):  # fmt: skip
        assert f"**{term}**" in glossary, term


def test_a_replaced_word_is_found_wherever_it_hides() -> None:
    assert words("_LightFuse2") == ["light", "fuse"]
    assert words("MAX_ROOM_S") == ["max", "room", "s"]
    assert words("HTTPDoor") == ["http", "door"]
    found = violations(
        {
            "router/policy/_model.pxd": ["edges_room", "laneway", "Lane"],
            "router/admission/queue.py": ["Lane", "lanes", "roomy"],
            "indexer/tree/_arena.pxd": ["ARENA_BINS", "names"],
            "bench/grid.py": ["Arena", "names"],
        }
    )
    assert found == {
        "room": {"router/policy": {"edges_room"}},
        "lane": {"router/policy": {"Lane"}},
        "names": {"indexer/tree": {"names"}},
        "arena": {"bench": {"Arena"}},
    }


def test_text_and_names_of_tests_are_no_identifiers(tmp_path: Path) -> None:
    python = tmp_path / "python.py"
    python.write_text('"""door"""\ndef test_a_door(): ...\nrun = f(gate="pace")  # tidy\n')
    assert identifiers(python) == {"python", "def", "run", "f", "gate"}
    cython = tmp_path / "_gate.pxd"
    cython.write_text('"""door"""\ncdef int door(Lane* a) nogil  # tidy\nx = \'it\\\'s a trail\'\n')
    assert identifiers(cython) == {"_gate", "cdef", "int", "door", "Lane", "a", "nogil", "x"}
