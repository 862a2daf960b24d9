"""How many files and connections this process may have open. Raised by commands that need many."""

import sys


def allow_open_files(wanted: int) -> int:
    """Raise our own limit towards `wanted`, as far as we may; the limit that holds then."""
    if sys.platform == "win32":
        return wanted  # there is no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
