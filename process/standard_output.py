"""`print_line`: a command's output for the person or program that started it."""

import sys


def print_line(line: str) -> None:
    """Write a line to standard output at once, in one piece.

    `print` writes the text and the line break apart where the output is unbuffered
    (PYTHONUNBUFFERED, usual in containers), and a line of the log, which another thread writes to
    the same file, can come between them.
    """
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
