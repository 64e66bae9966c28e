#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# configure --help lists every option that documents, scripts and configure's own messages name; each source names its licence.
tree=${0%/*}/../..
# shellcheck source=tests/support/checks.sh
. "$tree/tests/support/checks.sh"

help=$("$tree/configure" --help) || exit 1
named=$(cd "$tree" && grep -ohE -e '--(with|without|enable|disable)-[a-z][a-z-]*' README.md CONTRIBUTING.md doc/*.md configure.ac \
	m4/packages.m4 tests/support/builds.sh slurm/packaging/debian/rules slurm/packaging/rpm/slurm-ddp.spec |
	grep -vx -e --with-torch | sort -u) # build-deb has that one
if [ -n "$named" ]; then nothing "" "options are found"; else nothing "no option" "options are found"; fi
nothing "$(for option in $named; do
	echo "$help" | grep -q -e "^ *${option}[ =[]" -e "^ *$option\$" || echo "missing: $option"
done)" "configure --help lists each option that is named elsewhere"
nothing "$(echo "$help" | grep -q -e '^ *--enable-werror ' || echo 'it is the default')" "-Werror is no default"
maintainer=$(sed -n 's/^Maintainer: .*<\(.*\)>/\1/p' "$tree/slurm/packaging/debian/control")
nothing "$(echo "$help" | grep -q "^Report bugs to <$maintainer>" || echo "not $maintainer")" \
	"it says whom to tell of bugs, as the packages do"
sources=$(cd "$tree" && find libruntime spank kernels examples slurm tests doc m4/packages.m4 Makefile.am configure.ac \
	-name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.sh' -o -name '*.py' -o -name '*.mk' -o -name '*.am' \
	-o -name '*.ac' -o -name '*.m4' -o -name '*.map' -o -name '*.[1378]')
nothing "$([ "$(echo "$sources" | wc -l)" -gt 900 ] || echo "$sources" | wc -l)" "sources are found"
nothing "$(cd "$tree" && echo "$sources" | xargs awk '
	FNR == 1 { tell(); file = FILENAME }
	FNR == 4 { nextfile }
	/SPDX-License-Identifier: Apache-2.0/ { file = "" }
	function tell() { if (file != "") print file ": its first lines lack SPDX-License-Identifier: Apache-2.0" }
	END { tell() }')" "each source names its licence"
echo "1..$count"
