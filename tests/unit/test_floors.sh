#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# The sources are built in floors that only point down: a file includes, and calls, what is
# on its own floor or below, and no file depends on itself by way of others.
# What is checked: #include lines of the sources, undefined symbols of the objects.
set -u
source=$(cd "${0%/*}/../.." && pwd) || exit 1
# shellcheck source=tests/support/checks.sh
. "$source/tests/support/checks.sh"

# Each tree is a function that says what check() looks at. The names of files begin behind
# `root`, as in #include lines:
#   root        the folder of the project in which #include lines look
#   folder      the folder in it that is checked; "." is all of it
#   floors      from the ground up; a floor is a folder, or a file beside folders. A header with its ending
#               is a floor without the .c file of its name
#   interfaces  headers, or folders of them, of which several files have the functions: each for
#               one kind or one side, or what programs see

libruntime()
{
	root=libruntime folder=.
	floors=(include base watch job wireup device
		comm/ops comm/core comm/net comm/p2p comm/wait comm/attend comm/shm comm/hier comm/check comm/execute
		comm/request comm/agree comm/allocate comm/group comm/host comm/on_device comm/self comm/nccl comm/follow
		comm/api comm/adopt
		context renewal data params optim reduce state train nccl_plugins python
		preflight/schedule preflight/statistics preflight/finding preflight)
	interfaces=(include wireup/open.h wireup/star.h comm/net/net.h comm/net/ucx.h comm/hier/hier.h comm/hier/algorithms.h
		comm/nccl/lane.h reduce/model_state.h)
}

spank()
{
	root=. folder=spank
	floors=(spank/base spank/options spank/identity spank/wire spank/launch spank/witness spank/node spank/slurmctld spank/plugin.h spank/srun spank/status
		spank/stepd spank/task spank/plugin)
	interfaces=(spank/plugin.h spank/status/sources.h)
}

kernels()
{
	root=kernels folder=.
	floors=(half.h splitmix.h kernels.h update.h table.h cpu kernels cpu/convolution_onednn)
	interfaces=(kernels.h table.h cpu/cpu.h cpu/bf16.h cpu/mixed.h cpu/product.h)
}

files() { (cd "$source/$root" && find "$folder" -name '*.[ch]' | sed 's|^\./||'); }

# What the files include of each other, as "FILE INCLUDED"
includes()
{
	(cd "$source/$root" && files | xargs grep -H '^#include ["<]') | sed 's|^\([^:]*\):#include ["<]\([^">]*\).*|\1 \2|' |
		awk 'NR == FNR { file[$1] = 1; next }
			!($2 in file) { $2 = "include/" $2 }
			$2 in file' <(files) - | sort -u
}

# The symbols of the objects, as "FILE SYMBOL KIND" without the ending of FILE: an older build
# may have left objects that have no source.
symbols()
{
	awk 'NR == FNR { source[$1] = 1; next } $1 in source { print $1, $2, $3 }' \
		<(files | sed -n 's|\.c$||p') \
		<(find "$root/$folder" -name '*.o' -exec nm -A -P {} + |
			sed "s|^$root/||; s|^\./||"'; s|\.libs/||; s|[^/]*-||; s|\.o: | |') | sort -u
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
	function floor_of(file) {
		if (file in height) return height[file]
		sub(/\.[ch]$/, "", file)
		while (!(file in height) && sub(/\/[^\/]*$/, "", file)) {}
		return file in height ? height[file] : 0
	}
	BEGIN {
		count = split(floors, floor, " ")
		for (i = 1; i <= count; i++)
			height[floor[i]] = i
	}
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

# Functions of headers, as "SYMBOL HEADER"
declared()
{
	(cd "$source/$root" && files | grep '\.h$' | xargs grep -H '^[a-z][^=;(]*[ *][A-Za-z0-9_]*(') |
		sed 's|^\([^:]*\):[^(]*[ *]\([A-Za-z0-9_]*\)(.*|\2 \1|'
}

# misplaced: functions that a header declares and a file of another name defines
misplaced()
{
	awk -v interfaces="${interfaces[*]}" '
		function is_interface(header, i) {
			for (i = 1; i <= count; i++)
				if (header == name[i] || index(header, name[i] "/") == 1) return 1
			return 0
		}
		BEGIN { count = split(interfaces, name, " ") }
		NR == FNR { header[$1] = $2; next }
		$1 in header && header[$1] != $2 ".h" && !is_interface(header[$1]) {
			print header[$1] " declares " $1 "() of " $2 ".c"
		}' <(declared) <(defined)
}

checks=5

# check TREE
check()
{
	"$1"
	symbols=$(symbols)
	calls=$(calls)
	if [ -z "$calls" ]; then
		echo "Bail out! no objects in $PWD/$root/$folder"
		exit 1
	fi
	echo "# $1: $(files | wc -l) files, $(includes | wc -l) includes, $(wc -l <<<"$calls") calls"
	nothing "$(includes | upwards)" "$1: no file includes one of a higher floor"
	nothing "$(includes | grep '\.h [^ ]*\.h$' | circles)" "$1: no header includes itself by way of others"
	nothing "$(upwards <<<"$calls")" "$1: no file calls one of a higher floor"
	nothing "$(circles <<<"$calls")" "$1: no file calls itself by way of others"
	nothing "$(misplaced)" "$1: functions of a header are in the file of its name"
}

trees=(libruntime spank kernels)
echo "1..$((checks * ${#trees[@]}))"
for tree in "${trees[@]}"; do
	check "$tree"
done
