"""Child processes that do not outlive their parent."""

from __future__ import annotations

import sys

__all__ = ["tied"]

# A tiny Python that asks the kernel to be killed with its parent and then becomes the command.
# Not preexec_fn: that runs Python between fork and exec, beside whatever other threads there are.
_TIE = "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9);os.execv(sys.argv[1],sys.argv[1:])"


def tied(command: list[str]) -> list[str]:
    """``command``, an absolute path first, so that on Linux it dies when its parent is killed.

    A process that gets SIGKILL cannot stop its children itself. Elsewhere nothing is changed.
    """
    return [sys.executable, "-ISc", _TIE, *command] if sys.platform == "linux" else command
