#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs:; all: unit tsan asan; takes: 64
# What a GPU is to do where there is one (tests/gpu/train.sh), on the fake one. Prints TAP.
exec "$(dirname "$0")/../gpu/train.sh"
