#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# Each wait for a device's queue or event is one that `make check-waits` takes out, or is
# excepted there with a reason.
set -u
tests=${0%/*}/..
# shellcheck source=tests/support/checks.sh
. "$tests/support/checks.sh"

echo 1..1
nothing "$("$tests/support/check-waits" --sites "$tests/.." 2>&1)" "no wait is missing in tests/support/check-waits"
