#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# Extracts README.md's program, builds it with the README's own command against
# this build's library, and runs it as shown. Prints TAP. Runs in the build
# folder.
set -u
readme=$(cd "${srcdir:-.}" && pwd)/README.md
header=$(dirname "$readme")/libruntime/include
build=$PWD
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# block LANGUAGE TEXT: the first block of this language that holds TEXT
block()
{
	awk -v fence="\`\`\`$1" -v text="$2" '
		$0 == fence { inside = 1; content = ""; next }
		/^```$/ && inside { inside = 0; if (index(content, text)) { printf "%s", content; exit } }
		inside { content = content $0 "\n" }' "$readme"
}

result() # STATUS NUMBER NAME
{
	if [ "$1" = 0 ]; then echo "ok $2 - $3"; return; fi
	echo "not ok $2 - $3"
	sed 's/^/# /' "$work/output"
}

if grep -qE -e '__(asan|tsan)_init' libruntime/.libs/libddp.so; then
	echo "1..0 # SKIP the README's command links no sanitizer"
	exit 0
fi
echo 1..6
cd "$work" || exit 1
block c 'int main' >train.c
lines=$(wc -l <train.c)
echo "$lines lines" >output
wrong=0
[ "$lines" -gt 20 ] && [ "$lines" -lt 60 ] || wrong=1
result $wrong 1 "the program has under 60 lines"

# As installed, but in the build folder.
sed -e "s|^libdir=.*|libdir=$build/libruntime/.libs|" -e "s|^includedir=.*|includedir=$header|" \
	"$build/libruntime/libddp.pc" >libddp.pc
export PKG_CONFIG_PATH=$work LD_LIBRARY_PATH=$build/libruntime/.libs
block sh 'train.c' >commands
compile=$(grep '^cc ' commands)
run=$(grep '^\./train' commands)
bash -c "$compile -Wall -Wextra -Werror" >output 2>&1
result $? 2 "it compiles as shown: $compile"
timeout 60 bash -c "$run" >output 2>&1 && grep -q '^2 ranks: .*y = 3.00 a -2.00 b +1.00$' output
result $? 3 "it runs as shown: $run"
timeout 60 ./train >output 2>&1 && grep -q '^1 ranks: .*y = 3.00 a -2.00 b +1.00$' output
result $? 4 "it runs alone"

# Of a prefix of one's own, which no linker knows.
unset LD_LIBRARY_PATH
mkdir -p home/ddp/lib/pkgconfig && mv libddp.pc home/ddp/lib/pkgconfig && rm train
block sh 'PKG_CONFIG_PATH' >commands
HOME=$work/home bash -e commands >output 2>&1
result $? 5 "it compiles with a prefix of one's own"
timeout 60 ./train >output 2>&1 && grep -q '^1 ranks: ' output
result $? 6 "and finds its library there"
