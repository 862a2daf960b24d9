"""Node with @grpc/grpc-js."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("node.cjs")


@cache
def node_program() -> tuple[str, ...]:
    """The command. The test is skipped where Node does not find the package."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    wanted = [node, "-e", 'require.resolve("@grpc/grpc-js")']
    if subprocess.run(wanted, capture_output=True, check=False).returncode:
        pytest.skip("node finds no @grpc/grpc-js (NODE_PATH)")
    return node, str(PROGRAM)
