# SPDX-License-Identifier: Apache-2.0
"""What Python's tests print: TAP."""
import sys

count = failed = 0


def check(name, passed, seen=""):
    """Of a failure, the beginning of what was seen is told."""
    global count, failed
    count += 1
    failed += not passed
    print(f"{'ok' if passed else 'not ok'} {count} - {name}")
    if not passed:
        print("".join(f"# {line}\n" for line in str(seen)[:2000].splitlines()), end="")


def finish():
    print(f"1..{count}")
    sys.exit(failed > 0)
