#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hobble.py PID: lets a process run for a twentieth of the time only, as a limit of its CPU time would, until it ends."""
import os
import signal
import sys
import time

STOPPED, RUNS = 0.19, 0.01

pid = int(sys.argv[1])
try:
    # On a busy machine a pause of 10 ms would otherwise become one of 100 ms.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
except OSError:
    pass
while True:
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED)
        os.kill(pid, signal.SIGCONT)
        time.sleep(RUNS)
    except ProcessLookupError:
        sys.exit()
