#!/bin/bash
# libruntime/comm is built in floors that only point down: a file includes, and calls,
# what is on its own floor or below, and no file depends on itself by way of others.
# What is checked: #include lines of the sources, undefined symbols of the objects.
set -u
tests=${0%/*}
library=$tests/../../libruntime
objects=libruntime/comm
# shellcheck source=tests/support/nothing.sh
. "$tests/../support/nothing.sh"

# From the ground up; a floor is a folder, or a file beside them.
floors=(ops core net p2p wait attend shm hier check execute request agree allocate group host staged nccl follow front api)

# All #include lines of comm, as "FILE INCLUDED"
includes()
{
	(cd "$library" && find comm -name '*.[ch]' -exec \
		sed -n 's|^#include "\([^"]*\)".*|{} \1|p' {} \;) | sort -u
}

# The symbols of the objects, as "FILE SYMBOL KIND"; a file is comm/FOLDER/NAME, as its
# source: an older build may have left objects that have none.
symbols()
{
	awk 'NR == FNR { source[$1] = 1; next } $1 in source { print $1, $2, $3 }' \
		<(cd "$library" && find comm -name '*.c' | sed 's|\.c$||') \
		<(find "$objects" -name '*.o' -exec nm -A -P {} + |
			sed 's|^libruntime/||; s|\.libs/||; s|libddpcore_la-||; s|\.o: | |') | sort -u
}

# What they define, as "SYMBOL FILE", and what they lack, as "FILE SYMBOL"
defined() { awk 'index("TDBRVWC", $3) > 0 { print $2, $1 }' <<<"$symbols"; }
lacking() { awk '$3 == "U" { print $1, $2 }' <<<"$symbols"; }

# calls: "FILE FILE SYMBOL", of different files
calls()
{
	awk 'NR == FNR { at[$1] = $2; next }
		$2 in at && at[$2] != $1 { print $1, at[$2], $2 }' <(defined) <(lacking)
}

# upwards: of lines "FILE FILE..." those that point up
upwards()
{
	awk -v floors="${floors[*]}" '
	function floor_of(file, part) {
		split(file, part, "/")
		sub(/\.[ch]$/, "", part[2])
		return part[2] in height ? height[part[2]] : 0
	}
	BEGIN {
		count = split(floors, floor, " ")
		for (i = 1; i <= count; i++)
			height[floor[i]] = i
	}
	$2 !~ /^comm\// { next }
	floor_of($1) == 0 { print $1 " is on no floor"; next }
	floor_of($2) > floor_of($1)'
}

# circles: of lines "FILE FILE..." the files that depend on themselves. What depends
# on nothing is taken away, until nothing is left or only circles and who needs them;
# then the same from the other end.
circles()
{
	awk '
	{ from[NR] = $1; to[NR] = $2; alive[NR] = 1 }
	END {
		do {
			removed = 0
			split("", starts); split("", ends)
			for (i = 1; i <= NR; i++) {
				if (alive[i]) { starts[from[i]] = 1; ends[to[i]] = 1 }
			}
			for (i = 1; i <= NR; i++) {
				if (alive[i] && !(to[i] in starts && from[i] in ends)) { alive[i] = 0; removed++ }
			}
		} while (removed > 0)
		for (i = 1; i <= NR; i++) {
			if (alive[i]) print from[i] " -> " to[i]
		}
	}'
}

# A header with functions of several files: what stands for two implementations.
interfaces='comm/net/net.h'

# Functions of headers, as "SYMBOL HEADER"
declared()
{
	(cd "$library" && find comm -name '*.h' -exec \
		sed -n 's|^[a-z][^=;(]*[ *]\([A-Za-z0-9_]*\)(.*|\1 {}|p' {} \;)
}

# misplaced: functions that a header declares and a file of another name defines
misplaced()
{
	awk -v interfaces=" $interfaces " '
		NR == FNR { header[$1] = $2; next }
		$1 in header && index(interfaces, " " header[$1] " ") == 0 && header[$1] != $2 ".h" {
			print header[$1] " declares " $1 "() of " $2 ".c"
		}' <(declared) <(defined)
}

symbols=$(symbols)
calls=$(calls)
if [ -z "$calls" ]; then
	echo "Bail out! no objects in $PWD/$objects"
	exit 1
fi
echo 1..5
nothing "$(includes | upwards)" "no file of comm/ includes one of a higher floor"
nothing "$(includes | grep '\.h comm/' | circles)" "no header of comm/ includes itself by way of others"
nothing "$(upwards <<<"$calls")" "no file of comm/ calls one of a higher floor"
nothing "$(circles <<<"$calls")" "no file of comm/ calls itself by way of others"
nothing "$(misplaced)" "functions of a header of comm/ are in the file of its name"
