"""What a process asks of its system: files as many as allowed, and two signals to stop."""

import asyncio
import sys

import pytest

SCRIPT = """
import resource
from dynamo_router.process.system import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(allow_open_files({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


async def run(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limits"),
    [
        (100, 500, 300, "300 300 500"),
        (100, 500, 900, "500 500 500"),
        (400, 500, 300, "300 400 500"),
    ],
)
async def test_the_limit_is_raised_as_far_as_it_may_be(soft, hard, wanted, limits):
    script = SCRIPT.format(soft=soft, hard=hard, wanted=wanted)
    assert await run("-c", script) == (0, limits + "\n")


async def test_more_engines_than_files_are_refused_by_the_settings_name():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "import sys; sys.argv[1:] = ['mocker', '--workers', '400', '--port', '0']\n"
        "from dynamo_router.cli import main; main()"
    )
    code, said = await run("-c", script)
    assert code == 2
    assert "workers: 400 engines need 864 open files, the limit is 200 (ulimit -n)" in said
    assert "Traceback" not in said
