"""Child processes that cannot outlive the one that started them, whatever kills it."""

import os
import sys

# Runs in the child before the program it becomes. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL. If the
# parent went away before the call, the signal would never come: hence the look at getppid.
_TETHER = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tethered(argv: list[str]) -> list[str]:
    """The command that runs `argv` (its first an absolute path) as a child of this process, to be
    killed by the kernel when the calling THREAD ends: start it from one that lives long enough.

    A small program instead of a preexec_fn, because code between fork and exec may deadlock in
    a process with threads, and gRPC has them. Where the kernel knows no such thing (not Linux),
    `argv` itself.
    """
    if sys.platform != "linux" or not sys.executable:
        return argv
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *argv]
