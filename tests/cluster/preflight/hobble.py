#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hobble.py PID SHARE: lets a process run for that share of the time, as a limit of its CPU time would, until it ends."""
import os
import signal
import sys
import time

PERIOD = 0.2

pid, share = int(sys.argv[1]), float(sys.argv[2])
try:
    # On a busy machine a pause of 10 ms would otherwise become one of 100 ms.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
except OSError:
    pass
while True:
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PERIOD * (1 - share))
        os.kill(pid, signal.SIGCONT)
        time.sleep(PERIOD * share)
    except ProcessLookupError:
        sys.exit()
