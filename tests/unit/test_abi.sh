#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# What programs that were compiled with this libddp rely on is what tests/abi/libddp.abi says; libddp.so exports what
# the public headers declare; and the version is the same wherever it stands.
source=${0%/*}/../..
include=$source/libruntime/include
library=libruntime/.libs/libddp.so
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"

if [ ! -f $library ] || [ "$(getconf LONG_BIT)" != 64 ] || ! command -v readelf >/dev/null; then
	echo "1..0 # SKIP this needs libddp.so of 64 bits, and readelf"
	exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# differences WANTED GOT ADVICE
differences()
{
	diff "$1" "$2" | grep '^[<>]' && echo "$3"
}

said=$("$source/tests/abi/abi.sh" list "$include" $library 2>&1 >"$work/abi")
kinds=$(cut -d ' ' -f 1 "$work/abi" | sort -u | paste -s -d ' ')
nothing "$said$([ "$kinds" = 'enumerator field function macro size type' ] || echo "there are only: $kinds")" "the interface is found"
nothing "$(differences "$source/tests/abi/libddp.abi" "$work/abi" \
	"If programs that are compiled already go on working (CONTRIBUTING.md, libddp's interface): make abi-update")" \
	"it is that of tests/abi/libddp.abi"

sed -n 's/^DDP_API [^(]*\(ddp_[a-z0-9_]*\)(.*/\1/p' "$include"/ddp.h "$include"/ddp/*.h | LC_ALL=C sort >"$work/declared"
"$source/tests/abi/abi.sh" symbols "$include" $library >"$work/symbols"
sed -n 's/@@LIBDDP_1$//p' "$work/symbols" | LC_ALL=C sort >"$work/exported"
nothing "$(differences "$work/declared" "$work/exported" "libddp.map is made of the lines of the headers that begin with DDP_API")$(
	grep -v '@@LIBDDP_1$' "$work/symbols")" "libddp.so exports the functions of the headers"
sed 's/.*/ &@LIBDDP_1/; 1i\ LIBDDP_1@LIBDDP_1' "$work/exported" | LC_ALL=C sort >"$work/wanted"
sed 1d "$source/slurm/packaging/debian/libddp1.symbols" | sed 's/ [^ ]*$//' >"$work/debian"
nothing "$(differences "$work/wanted" "$work/debian" "make abi-update writes slurm/packaging/debian/libddp1.symbols")" "so does Debian's list"

version=$(sed -n 's/^#define DDP_VERSION_M[A-Z]* //p; s/^#define DDP_VERSION_PATCH //p' "$include/ddp/version.h" | paste -s -d . -)
# stated FILE COMMAND-OF-SED: what the file takes for the version
stated() { sed -n "$2" "$1" | head -n 1 | grep -vxF "$version" | sed "s|^|$1 says |"; }
nothing "$(
	stated config.h 's/^#define PACKAGE_VERSION "\(.*\)"/\1/p'
	stated "$source/slurm/packaging/debian/changelog" 's/^slurm-ddp (\([^)]*\)).*/\1/p'
	stated "$source/slurm/packaging/rpm/slurm-ddp.spec" 's/.*global ddp_version \([0-9.]*\)}/\1/p'
)" "all say that this is $version, as ddp/version.h does"

# A build's version: the release and its commit. An archive has no git, but the commit's file.
built=$("$source/build-version")
mkdir -p "$work/archive/libruntime/include/ddp" && cp "$source/build-version" "$work/archive" &&
	cp "$include/ddp/version.h" "$work/archive/libruntime/include/ddp"
bare=$("$work/archive/build-version")
"$source/build-version" --commit >"$work/archive/build-commit"
nothing "$(printf '%s\n' "$built" | grep -vxE "$version(\\+[0-9]{12}\.g[0-9a-f]{8}(\.m)?)?")$(
	[ ${#built} -le 31 ] || echo "'$built' is longer than srun and nodes have room for")" "a build's version is the release and its commit"
nothing "$([ "$("$work/archive/build-version")" = "$built" ] || echo "not $built in an archive")$(
	[ "$bare" = "$version" ] || echo "'$bare' without git and the archive's file")" "which an archive knows, too"
nothing "$(for program in spank/status/ddp-status libruntime/preflight/ddp-preflight; do
	[ "$($program --version)" = "${program##*/} $built" ] || echo "$program: $($program --version)"; done)" "programs tell it"
echo "1..$count"
