#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes configure from configure.ac; needed once after a clone.
cd "$(dirname "$0")" || exit 1
command -v autoreconf >/dev/null || {
	echo "autogen.sh: autoreconf not found: install autoconf, automake, libtool and pkg-config" >&2
	exit 1
}
tests/support/tags --make >tests/programs.mk || exit 1
exec autoreconf --install --force
