"""What native code prints, kept out of what a test reads."""

import os
import sys


def only_python_speaks() -> None:
    """Python's print goes where it went; what native code writes to the standard output is dropped.

    Gloo greets from several threads at once, so that its lines are mixed and cannot be told from ours.
    """
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
