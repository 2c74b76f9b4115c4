"""Runs a command that ends when its parent does: `python launch.py PARENT_PID COMMAND...` (Linux).

A program of its own, because code between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1      # linux/prctl.h; survives exec

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:                        # it died before prctl
        sys.exit(1)
    os.execv(command[0], command)
