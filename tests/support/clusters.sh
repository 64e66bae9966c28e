# SPDX-License-Identifier: Apache-2.0
# clusters.sh: the suite of tests/run on throw-away SLURM clusters.
# shellcheck shell=bash disable=SC2154 # tests/run sets source, work, logs, cluster

prefix='' root=''
running='' # "NODES OPTIONS" of the cluster that is up
cluster_lanes=() # processes that run tests beside each other

# cluster_tests [all]: their names; without "all", those of which a line "# all: cluster" says that only --all runs them are
# left out
cluster_tests()
{
	(
		cd "$source/tests/cluster" || exit
		if [ -n "${1-}" ]; then ls -- *.sh; else grep -L '^# all: cluster$' -- *.sh; fi | sed 's/\.sh$//' | grep -vx lib
	)
}

# header FILE KEY DEFAULT: the value of a "# KEY: value" line at a test's start
header()
{
	local line value=''
	while read -r line && [ -n "$line" ]; do
		[[ $line != "# $2: "* ]] || { value=${line#*: }; break; }
	done <"$1"
	echo "${value:-$3}"
}

# An installation as a site would have it, and the examples beside it, which
# make install leaves out; where any user can read it.
install_tree()
{
	local program dir
	root=$work/root
	dir=$(build_of cluster)
	prefix=$root$(make -s -C "$dir" print-prefix) || return 1
	[ ! -e "$work/installed" ] || return 0
	step cluster 'make install' 300 "$logs/install.log" make -C "$dir" install "DESTDIR=$root" || return 1
	mkdir -p "$prefix/bin"
	for program in $(make -s -C "$dir" print-examples); do
		step cluster "installing $program" 60 "$logs/install.log" "$dir/libtool" --mode=install \
			install -c "$dir/$program" "$prefix/bin/$(basename "$program")" || return 1
	done
	: >"$work/installed"
}

# want_cluster NODES OPTIONS: the cluster that is up has these, or ends and
# another starts; 0 nodes: none. It stops by itself when tests/run ends.
want_cluster()
{
	local nodes=$1 options=$2 plugin arguments
	[ "$nodes $options" != "$running" ] || return 0
	stop_cluster
	[ "$nodes" != 0 ] || return 0
	plugin=$(build_of cluster)/spank/.libs/spank_ddp.so
	arguments=(--dir "$cluster" --nodes "$nodes" --for $$)
	if [ -f "$plugin" ]; then arguments+=(--plugin "$plugin"); else arguments+=(--no-plugin); fi
	eval "arguments+=($options)"
	step cluster "starting a cluster of $nodes nodes${options:+, $options}" 90 "$logs/cluster-start.log" \
		"$source/slurm/cluster" start "${arguments[@]}" || return 1
	running="$nodes $options"
}

stop_cluster()
{
	running=''
	[ ! -d "$cluster" ] || limited 60 "$logs/cluster-start.log" "$source/slurm/cluster" stop --dir "$cluster"
}

end_clusters()
{
	[ ${#cluster_lanes[@]} = 0 ] || { kill "${cluster_lanes[@]}" 2>/dev/null; wait "${cluster_lanes[@]}"; }
	stop_cluster
}

# cluster_test NAME: on the cluster that it wants
cluster_test()
{
	local name=$1 file=$source/tests/cluster/$1.sh status=0 log=$logs/cluster-$1.log own=$work/tests/$1 before started load
	if [[ $(header "$file" cluster '') == *--cgroups* ]] && ! has_cgroups; then
		record SKIP cluster "$name" "this machine has no control groups of version 1" ''
		return
	fi
	want_cluster "$(header "$file" nodes 2)" "$(header "$file" cluster '')" || return
	started=$SECONDS before=$(count FAIL cluster "$name")
	rm -rf "$own" && mkdir -p "$own" && chmod 1777 "$own" || return 1
	: >"$log"
	# A test may take as many times as long as there are processes for each core. The machine may become busy later.
	read -r load _ </proc/loadavg
	load=$((${load%.*} / cores + 1))
	limited $((2 * ${TEST_SECONDS:-$(header "$file" seconds 120)} * (load < 20 ? load : 20))) "$log" env -C "$own" work="$own" \
		source="$source" build="$(build_of cluster)" prefix="$prefix" cluster="$cluster" \
		all="$all" LD_LIBRARY_PATH="$prefix/lib" bash "$file" || status=$?
	from_tap cluster "$name" $status "$log"
	ended cluster "$name" "$((SECONDS - started)) s"
	[ "$(count FAIL cluster "$name")" != "$before" ] || return 0
	keep_evidence cluster "$name" "$log" "$cluster/log" "$own/hung"
	# What failed may have left the cluster in any state.
	stop_cluster
}

can_cluster() { [ "$(id -u)" = 0 ] && unshare --mount --net --pid --fork true 2>/dev/null; }

# As slurm/cluster --cgroups asks for them.
has_cgroups() { (($(grep -cE '^(freezer|memory)[[:space:]]+[1-9]' /proc/cgroups) == 2)); }

# cluster_alone NAME
cluster_alone()
{
	if ! can_cluster; then record SKIP cluster "$1" "needs root and namespaces" ''; return; fi
	build_tree unit && install_tree && cluster_test "$1"
}

# longest_first NAME...: a line for each test: what it takes by its header, the cluster that it wants, and its name; the
# longest test comes first
longest_first()
{
	local name file
	for name; do
		file=$source/tests/cluster/$name.sh
		printf '%s\t%s %s\t%s\n' "$(header "$file" takes "$(header "$file" seconds 120)")" "$(header "$file" nodes 2)" \
			"$(header "$file" cluster '')" "$name"
	done | sort -rns
}

# next_test: takes the first test that is left and wants the cluster that is up. If none does, or if the first test of all
# takes twice as long, it takes that one: a long test that begins last keeps all lanes waiting.
next_test()
{
	local line
	(
		flock 9
		line=$(running=$running awk -F '\t' 'NR == 1 { most = $1 } 2 * $1 < most { exit }
			$2 == ENVIRON["running"] { n = NR; exit } END { print n ? n : 1 }' "$work/clusters")
		sed -n "${line}s/.*\t//p" "$work/clusters"
		sed -i "${line}d" "$work/clusters"
	) 9>"$work/clusters.lock"
}

# cluster_lane NUMBER: tests, until none is left
cluster_lane()
{
	local name
	trap 'end_child; stop_cluster' EXIT
	trap 'exit 143' TERM
	cluster=$cluster-$1
	while name=$(next_test) && [ -n "$name" ]; do cluster_test "$name"; done
	stop_cluster
}

# after_builds: the builds, which take the processors, are made
after_builds() { while [ -n "$builder" ] && kill -0 "$builder" 2>/dev/null; do read -rt 1 -u "$never"; done; }

# run_clusters NAME...: these tests compute for a twentieth of their time, so that five run at a time, and six after the
# builds.
run_clusters()
{
	local name i
	longest_first "$@" >"$work/clusters"
	if ! can_cluster || ! build_tree unit || ! install_tree; then
		for name; do cluster_alone "$name"; done
		return
	fi
	for i in 1 2 3 4 5 6; do
		([ "$i" != 6 ] || after_builds; cluster_lane "$i") &
		cluster_lanes+=($!)
	done
	wait "${cluster_lanes[@]}"
	cluster_lanes=()
}
