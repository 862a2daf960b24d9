"""What the scripts of CI name exists, so that a file that moved is noticed at once."""

import re
import subprocess
from pathlib import Path

import pytest
from support.places import ROOT

SCRIPTS = [path for path in sorted((ROOT / ".ci").iterdir()) if path.read_bytes().startswith(b"#!")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_of_ci_names_exists(script: Path) -> None:
    text = "".join(line for line in script.read_text().splitlines(True) if line[0] != "#")
    named = re.findall(r"(?<![\w/])tests/[\w/.{},-]+", text)
    assert named, "a pattern that finds nothing"
    words = " ".join(word.rstrip("/,.") for word in named)
    listed = subprocess.run(
        ["bash", "-c", f"echo {words}"], capture_output=True, text=True, check=True
    )
    missing = [word for word in listed.stdout.split() if not (ROOT / word).exists()]
    assert not missing
