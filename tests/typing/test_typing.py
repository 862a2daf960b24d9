"""Type checkers see the package as its users do: right code passes, wrong code does not."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT

HERE = Path(__file__).parent
RIGHT = (HERE / "use.py", HERE / "policy_author.py")
WRONG = HERE / "misuse.py"
Line = tuple[str, int]
Findings = dict[Line, list[tuple[str, str]]]  # by file and line: severity, message


def mypy() -> Findings:
    found: Findings = {}
    for line in run("mypy", "--strict", "--no-error-summary", "--output=json").splitlines():
        each = json.loads(line)
        place = Path(each["file"]).name, each["line"]
        found.setdefault(place, []).append((each["severity"], each["message"]))
    return found


def pyright() -> Findings:
    found: Findings = {}
    for each in json.loads(run("basedpyright", "--outputjson"))["generalDiagnostics"]:
        severity = "note" if each["severity"] == "information" else each["severity"]
        place = Path(each["file"]).name, each["range"]["start"]["line"] + 1
        found.setdefault(place, []).append((severity, each["message"]))
    return found


def run(tool: str, *options: str) -> str:
    files = [str(path.relative_to(ROOT)) for path in (*RIGHT, WRONG)]
    done = subprocess.run(
        [sys.executable, "-m", tool, *options, *files], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr  # errors were found, and no crash
    return done.stdout


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def findings(request: pytest.FixtureRequest) -> Findings:
    found: Findings = request.param()
    return found


def errors(findings: Findings, path: Path) -> dict[int, list[str]]:
    return {
        line: [message for _, message in messages]
        for (name, line), messages in findings.items()
        if name == path.name and any(severity == "error" for severity, _ in messages)
    }


def marks(path: Path, pattern: str) -> dict[int, str]:
    lines = enumerate(path.read_text().splitlines(), 1)
    return {number: mark[1] for number, line in lines if (mark := re.search(pattern, line))}


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_what_users_write_passes(findings: Findings, path: Path) -> None:
    assert errors(findings, path) == {}


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_results_have_the_types_that_are_told(findings: Findings, path: Path) -> None:
    expected = marks(path, r"reveal_type\(.*\)  # (.+)")
    told = {line: revealed(findings[path.name, line]) for line in expected}
    assert expected
    assert told == expected


def revealed(messages: list[tuple[str, str]]) -> str:
    (message,) = (text for severity, text in messages if severity == "note")
    quoted = re.findall(r'"([^"]+)"', message)
    return quoted[-1].replace("builtins.", "")


def test_wrong_code_is_refused_and_nothing_else(findings: Findings) -> None:
    expected = marks(WRONG, r"  # (refused)")
    assert len(expected) > 20
    found = errors(findings, WRONG)
    assert {line: found[line] for line in set(found) - set(expected)} == {}
    assert sorted(set(expected) - set(found)) == []
