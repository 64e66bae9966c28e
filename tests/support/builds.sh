# SPDX-License-Identifier: Apache-2.0
# builds.sh: the builds of tests/run, and the suites that need a build or none.
# shellcheck shell=bash disable=SC2154 # tests/run sets source, work, logs, jobs, build

# What tests/support/tags prints
tags=$("$source/tests/support/tags")
[ -n "$tags" ] || { echo "tests/run: tests/support/tags finds no tests" >&2; exit 1; }

# tagged SUITE [all]: the paths of the tests that a suite runs; with "all" also those that it only runs with --all
tagged()
{
	awk -F '\t' -v suite="$1" -v all="${2-}" '
		index(" " $2 " " (all == "" ? "" : $3 " "), " " suite " ") { print $1 }' <<<"$tags"
}

# paths NAME...: of tests, as the makefile has them
paths() { cut -f 1 <<<"$tags" | sed 's/\.c$//' | grep -E "/($(IFS='|' && echo "$*"))\$"; }

# programs SUITE: the paths of those that are compiled for what is wanted of it
programs()
{
	local names=()
	mapfile -t names < <(wanted "$1")
	[ ${#names[@]} = 0 ] || paths "${names[@]}" | grep -vE '\.(sh|py)$|/test_harness$'
}

child=''
end_child() { [ -z "$child" ] || kill "$child" 2>/dev/null; }

# limited SECONDS LOG COMMAND...: with a deadline, output to LOG. It runs in the
# background, so that a signal to us is heeded at once. If `session` is set, it is a
# session of its own; timeout begins it, and so ends all that is in it. Suites wait for builds: Linux shares the cores
# between sessions (sched(7), autogroup), of which each test is one, and root may give a build three shares.
limited()
{
	local status=0 ahead=()
	# shellcheck disable=SC2016 # it is expanded in there
	[ -z "${session-}" ] || ahead=(setsid sh -c '{ echo -5 >/proc/self/autogroup; } 2>/dev/null; exec "$@"' sh)
	"${ahead[@]}" timeout -k 15 "$1" "${@:3}" >>"$2" 2>&1 </dev/null &
	child=$!
	wait $child || status=$?
	child=
	return $status
}

# step SUITE WHAT SECONDS LOG COMMAND...: something that must work for tests to
# run at all; a failure counts as one.
step()
{
	local suite=$1 what=$2 seconds=$3 log=$4 status=0
	shift 4
	say "$what"
	limited "$seconds" "$log" "$@" || status=$?
	[ $status != 0 ] || return 0
	[ $status != 124 ] || what="$what (time was up after $seconds s)"
	record FAIL "$suite" '' "$what: failed" "$log"
	say "$what failed; the end of $log:"
	tail -n 30 "$log"
	return 1
}

# What the machine needs for any test, and the tree for any build.
prepare_machine()
{
	if [ -n "$install" ] && [ "$(id -u)" = 0 ]; then
		step setup 'installing what is missing' 900 "$logs/install-deps.log" \
			"$source/slurm/install-deps" --tests || return 1
	fi
	[ -x "$source/configure" ] || step setup 'autogen.sh' 180 "$logs/autogen.log" "$source/autogen.sh"
}

# build_of SUITE: the folder of its build; unit, fuzz, distcheck and cluster share one
build_of()
{
	case $1 in
	bare|no-*|asan|tsan) echo "$work/build-$1" ;;
	*) echo "${build:-$work/build-unit}" ;;
	esac
}

# Makes the builds while tests run, which wait more than they compute.
build_ahead()
{
	local suite
	builder=
	for suite in "${built_suites[@]}"; do
		[ -n "$(wanted "$suite")" ] || continue
		times >"$work/cpu.build"
		build_tree "$suite"
		times >"$work/cpu.build.after"
		say "the build of $suite took $(cpu_between "$work/cpu.build" "$work/cpu.build.after") s of CPU"
	done
}

# await_build DIR: until the builder has made it, or could not
await_build()
{
	while [ -n "$builder" ] && [ ! -e "$1/.built" ] && [ ! -e "$1/.failed" ] && kill -0 "$builder" 2>/dev/null; do
		read -rt 0.2 -u "$never"
	done
}

# build_tree SUITE: an out-of-tree build with all programs of its tests, made once
build_tree()
{
	local dir
	dir=$(build_of "$1")
	[ "$dir" != "$build" ] || return 0
	await_build "$dir"
	[ ! -e "$dir/.built" ] || return 0
	[ ! -e "$dir" ] || return 1 # it was tried, and the failure is told
	mkdir "$dir" || return 1
	if make_tree "$1" "$dir"; then : >"$dir/.built"; else : >"$dir/.failed"; return 1; fi
}

# A compiler's cache makes the next run's builds, also of another clone: each finds its sources by the same path. If the
# compiler tells what it read (-MD), the cache does not preprocess a file before each compilation.
ccache='' tells=''
if command -v ccache >/dev/null; then
	ccache='ccache ' tells=' -MD'
	export CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
fi

# libtool's own script takes 40 s of processor time for each build.
readonly quick_libtool="LIBTOOL=$CONFIG_SHELL $source/tests/support/quick-libtool"

# plan_build: sets what make_tree has of its own for `suite`
plan_build()
{
	case $suite in
	bare) options=(--without-{ucx,pmix,blas}) ;;&
	no-*) options=("--without-${suite#no-}") ;;&
	bare|no-*)
		flags+=(LDFLAGS='-Wl,--no-undefined-version') # as lld has it, from 16 on
		mapfile -t targets < <(echo examples/allreduce; programs "$suite")
		# With --all, tests see whether clang's code for kernels, which no sanitizer keeps from vectors, computes what gcc's does.
		if [ -z "$all" ]; then
			options+=(CC="${ccache}gcc" --cache-file="$work/config.gcc")
		else
			options+=(CC="${ccache}clang" --cache-file="$work/config.clang") flags+=(CFLAGS="-g1 -O1$tells")
		fi ;;
	asan) options=(CC="${ccache}clang" EMULATION_CXX="${ccache}clang++" --disable-cuda-kernels '--enable-sanitizer=address,undefined'
			--cache-file="$work/config.clang")
		flags=(CFLAGS="-g1 -O0$tells")
		# Of a test itself, what it writes to matters; with --all, tests are checked as the product is.
		[ -n "$all" ] || of_tests=(CFLAGS="-g1 -O0$tells -fno-sanitize=undefined") ;;
	# gcc warns of fences, which the thread sanitizer does not know.
	tsan) options=(CC="${ccache}gcc" --disable-cuda-kernels --enable-sanitizer=thread --cache-file="$work/config.gcc")
		flags=(CFLAGS="-g1 -O1 -Wno-tsan$tells")
		# Programs of C need nothing that is installed but the libraries that they load.
		wanted tsan | grep -qE '\.(sh|py)$' || {
			flags+=('bin_PROGRAMS=' 'spank_LTLIBRARIES=' noinst_LTLIBRARIES=tests/device/libddp_fake_gpu.la)
			examples=()
		} ;;
	# The product is optimized as users have it, tests only as far as gcc's warnings want it.
	*) suite=unit options=(CC="${ccache}gcc" --cache-file="$work/config.gcc") of_tests=(CFLAGS="-g1 -O1$tells") ;;
	esac
	# NCCL's network is built on request, as --all is one.
	if wanted "$suite" | grep -qE '^test_(netplugin|gpudirect)'; then options+=(--enable-nccl-net); fi
	[[ $suite = @(bare|no-*) ]] || targets+=("check_PROGRAMS=$(programs "$suite" | paste -s -d ' ')")
	# The linker that takes least time, but where it is the product's.
	for linker in lld gold; do
		[[ $suite != @(asan|tsan) ]] || ! command -v "ld.$linker" >/dev/null || { flags+=("LDFLAGS=-fuse-ld=$linker"); break; }
	done
	# No test runs the benchmarks and the programs of clusters in these builds.
	[ "$suite" != asan ] || examples+=(examples/{parallel/parallel,scaling,vision/{mnist_mlp,mnist_cnn,synthetic}})
	[[ $suite != @(asan|tsan) ]] || flags+=("noinst_PROGRAMS=${examples[*]}")
}

# take_objects: those of the first build, if it is made, except for the files that name a macro of config.h which is another
# here. These are few, as no header names one. It runs in the build's folder. With the folders' stamps, make takes the
# objects as they are, and so it does the kernels' libraries of one instruction set: libtool has no part in it.
take_objects()
{
	local unit macros file folders=(libruntime kernels spank examples tests)
	unit=$(build_of unit)
	[ -e "$unit/.built" ] || return 0
	macros=$(diff "$unit/config.h" config.h | grep -oE '[A-Z][A-Z0-9_]{3,}' | sort -u | paste -s -d '|')
	if grep -rlE "$macros" "${folders[@]/#/../src/}" --include='*.h' >>"$logs/build-$suite.log"; then
		step "$suite" "a header depends on what is there: all has to be compiled anew" 1 "$logs/build-$suite.log" false
		return 1
	fi
	(cd "$unit" && find "${folders[@]}" '(' -name '*.lo' -o -path '*/.libs/*.o' -o -name .dirstamp \
		-o -path 'kernels/lib*_*.la' -o -path 'kernels/.libs/lib*_*.a' ')' -print0 |
		tar -c --null -T -) | tar -x || return 1
	for file in $(cd ../src && grep -rlE "$macros" "${folders[@]}" --include='*.c' | sed 's/\.c$//'); do
		rm -f "$file.lo" "${file%/*}/"*"-${file##*/}.lo"
	done
}

# make_tree SUITE DIR
make_tree()
{
	# Of what debuggers know, stacks take lines and names only, which compile faster.
	local suite=$1 dir=$2 session=yes flags=(CFLAGS="-g1 -O2$tells") of_tests=() options=() targets=(check TESTS=)
	local examples=(examples/{allreduce,gpt/gpt,linear}) make=(make -j $((2 * jobs)) "$quick_libtool")
	# Of the kernels for GPUs, nvcc takes as long for each kind of GPU, and for what makes them fast.
	local one_arch=('NVCC_ARCHS=-gencode arch=compute_80,code=sm_80' 'NVCCFLAGS=-Xcicc -O1 -Xptxas -O0')
	[ -e "$work/src" ] || ln -s "$source" "$work/src" || return 1
	plan_build && cd "$dir" || return 1
	# A build that is made once needs no dependencies. A compiler finds in the system what it found before; flags that
	# make is told leave that as it is.
	step "$suite" "configuring ($suite)" 180 "$logs/build-$suite.log" \
		../src/configure --prefix=/opt/slurm-ddp-tests --disable-dependency-tracking --enable-werror "${options[@]}" || return 1
	[[ $suite != @(bare|no-*) ]] || [ -n "$all" ] || take_objects || return 1
	# Code that is not optimized compiles in a third of the time; kernels compute for longer than they compile. In those
	# for vectors of 512 bits, clang takes 150 times as long to optimize loops under its sanitizers.
	if [ "$suite" = asan ]; then
		step asan "building the kernels (asan)" 1500 "$logs/build-asan.log" "${make[@]}" "${flags[@]}" \
			{kernels/cpu/libproduct_avx512_la-product_avx512,libruntime/comm/ops/libddpcore_la-kernels{,_avx2,_avx512}}.lo || return 1
		# shellcheck disable=SC2046 # paths are words
		step asan "building the kernels (asan)" 1500 "$logs/build-asan.log" "${make[@]}" "${flags[@]}" CFLAGS="-g1 -O1$tells" \
			kernels/libkernels.la kernels/libconvolution.la $(programs asan | grep /test_kernel) || return 1
	fi
	if [[ $suite != @(bare|no-*) ]]; then
		step "$suite" "building ($suite)" 1500 "$logs/build-$suite.log" "${make[@]}" "${one_arch[@]}" "NVCC=$ccache$(sed -n 's/^NVCC = //p' Makefile)" "${flags[@]}" all || return 1
	fi
	step "$suite" "building the tests ($suite)" 1500 "$logs/build-$suite.log" "${make[@]}" "${flags[@]}" "${of_tests[@]}" "${targets[@]}" || return 1
	compile_others
}

# What a compiler has to say of programs that this build has not, it says without compiling them whole: clang of those
# that no test runs under its sanitizers, and gcc of tests that only clang has compiled.
compile_others()
{
	local targets=(SANITIZER_CFLAGS= CFLAGS=-fsyntax-only CCLD=true)
	# Who asks for a few tests waits for no other programs.
	whole "$suite" || return 0
	case $suite in
	asan) targets+=(all) ;;
	tsan) mapfile -t -O 3 targets < <(awk -F '\t' '$4 !~ /NCCL_NET/ { print $1 }' <<<"$tags" | sed -n 's/\.c$//p' | grep -vxF -f <(programs unit; programs tsan)) ;;
	*) return ;;
	esac
	step "$suite" "compiling the other programs ($suite)" 1500 "$logs/build-$suite.log" "${make[@]}" -k "${targets[@]}"
}

# ---- make check ----------------------------------------------------------------------

# check_tree SUITE NAME...: make check in its build, of these tests
check_tree()
{
	local suite=$1 dir status=0 name paths=() before targets=(check)
	dir=$(build_of "$suite")
	# A build that was given may lack programs; others have theirs.
	if [ "$dir" = "$build" ]; then targets+=("check_PROGRAMS=$(programs "$suite" | paste -s -d ' ')"); else targets=(check-TESTS check_PROGRAMS=); fi
	shift
	mapfile -t paths < <(paths "$@")
	say "make check ($suite)$(whole "$suite" || echo ": $*")"
	find "$dir/tests" -name '*.trs' -delete 2>/dev/null
	before=$(count FAIL "$suite")
	# The thread sanitizer cannot see how OpenMP's threads wait for each other.
	[ "$suite" != tsan ] || export OMP_THREAD_LIMIT=1
	# Most tests wait three times as long as they compute.
	limited 1500 "$logs/check-$suite.log" make -C "$dir" -k -j $((2 * jobs)) "${targets[@]}" "TESTS=${paths[*]}" || status=$?
	unset OMP_THREAD_LIMIT
	from_check "$suite" "$dir"
	if [ "$(find "$dir/tests" -name '*.trs' | wc -l)" = 0 ]; then
		record FAIL "$suite" '' "make check ran no test, status $status" "$logs/check-$suite.log"
	elif [ $status != 0 ] && [ "$(count FAIL "$suite")" = "$before" ]; then
		record FAIL "$suite" '' "make check ended with status $status" "$logs/check-$suite.log"
	fi
}

# from_check SUITE BUILD: records what make check left behind, a .trs file for each test that ended, and in its .log a
# line for each result; and says a line on each test. One program reads all logs: several for each would take seconds.
from_check()
{
	local line name log files=() own=$results.$1
	mapfile -t files < <(find "$2/tests" -name '*.trs' | sed 's/trs$/log/' | sort)
	: >"$own"
	: >"$own.failed"
	awk -v suite="$1" -v at="$(say '')" -v own="$own" '
		function keep(line,    kind, text) {
			kind = line
			sub(/:.*/, "", kind)
			kind = kind == "PASS" || kind == "SKIP" ? kind : kind == "XFAIL" ? "PASS" : "FAIL"
			text = line
			sub(/^[A-Z]+: [^ ]+ *(- *|[0-9]+ *-? *)?/, "", text)
			printf "%s\t%s\t%s\t%s\t%s\n", kind, suite, name, text, ARGV[i] >own
			n[kind]++
			any = 1
		}
		BEGIN {
			for (i = 1; i < ARGC; i++) {
				name = ARGV[i]
				sub(/.*\//, "", name)
				sub(/\.log$/, "", name)
				took = any = ""
				split("", n)
				while ((getline line <ARGV[i]) > 0) {
					if (line ~ /^# took .* s of CPU$/) took = substr(line, 8)
					if (line ~ /^(PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): tests\//) keep(line)
				}
				close(ARGV[i])
				if (!any) keep("FAIL: it no result")
				if (n["FAIL"]) print name "\t" ARGV[i] >(own ".failed")
				printf "%s%-40s %d passed%s%s, %s\n", at, suite "/" name, n["PASS"], n["SKIP"] ? ", " n["SKIP"] " skipped" : "",
					n["FAIL"] ? ", " n["FAIL"] " FAILED" : "", took
			}
		}' "${files[@]}"
	while IFS=$'\t' read -r name log; do keep_evidence "$1" "$name" "$log"; done <"$own.failed"
	# Other lanes write there, too: each line at once.
	while IFS= read -r line; do printf '%s\n' "$line"; done <"$own" >>"$results"
}

# ---- lint, fuzz, distcheck -------------------------------------------------------------

# The tree's files, by path
tracked() { (cd "$source" && { git ls-files 2>/dev/null || find slurm tests .ci examples -type f; }); }

# The tree's shell scripts, by path
scripts()
{
	local file first
	while read -r file; do
		first=''
		[[ $file == *.sh ]] || IFS= read -r first 2>/dev/null <"$source/$file"
		[[ $file != *.sh && $first != '#!/bin/'?(ba)sh* && $first != '#!/usr/bin/env bash'* ]] || echo "$file"
	done < <(tracked | grep -vE '\.(c|h|m4|am|ac|mk|md|in|[0-9])$')
}

# read_by SCRIPT...: a line for each, of the scripts that shellcheck reads for it: itself, and those of the names that it
# sources, or that these do
read_by()
{
	awk '
		function base(path) { sub(/.*\//, "", path); return path }
		function read(script,    words, i) {
			if (script in seen) return
			seen[script]
			printf "%s ", script
			for (i = split(sourced[script], words, " "); i > 0; i--) read(words[i])
		}
		BEGIN { for (i = 1; i < ARGC; i++) called[base(ARGV[i])] = called[base(ARGV[i])] " " ARGV[i] }
		/(^|[ \t;(])(\.|source)[ =].*\.sh/ {
			while (match($0, /[^\/ ="\047}]+\.sh/)) {
				sourced[FILENAME] = sourced[FILENAME] called[substr($0, RSTART, RLENGTH)]
				$0 = substr($0, RSTART + RLENGTH)
			}
		}
		END { for (i = 1; i < ARGC; i++) { split("", seen); read(ARGV[i]); print "" } }' "$@"
}

# plan_lint: sets `found_right`, the folder that keeps the keys of scripts that passed, and `lint_key`, for each script the
# sum of all that shellcheck's answer comes of: shellcheck, its options, and what it reads
declare -A lint_key=()
plan_lint()
{
	local home=${HOME:-$work} keys=$work/lint script scripts file sum line
	local -A sums=()
	found_right=${XDG_CACHE_HOME:-$home/.cache}/slurm-ddp-lint
	mkdir -p "$found_right" "$keys" && find "$found_right" -type f -mtime +30 -delete
	mapfile -t scripts < <(scripts)
	while read -r sum file; do sums[$file]=$sum; done < <(cd "$source" && sha256sum "${scripts[@]}")
	{
		shellcheck --version
		echo "${SHELLCHECK_OPTS-}"
		cat "$home/.shellcheckrc" "${XDG_CONFIG_HOME:-$home/.config}/shellcheckrc" 2>/dev/null
		cd "$source" && tracked | grep -E '(^|/)\.?shellcheckrc$' | xargs -r sha256sum
	} >"$keys/shared"
	while read -r script line; do
		for file in "$script" $line; do echo "$file ${sums[$file]}"; done | sort |
			cat "$keys/shared" - >"$keys/of-${script//\//-}"
	done < <(cd "$source" && read_by "${scripts[@]}")
	while read -r sum file; do lint_key[${file##*/of-}]=$sum; done < <(sha256sum "$keys"/of-*)
}

# lint_script NAME: shellcheck reads the script only if something has changed since it was found right
lint_script()
{
	local log key
	log=$logs/lint-${1//\//-}.log
	if ! command -v shellcheck >/dev/null; then
		record SKIP lint "$1" "shellcheck is not installed" ''
		return
	fi
	[ ${#lint_key[@]} -gt 0 ] || plan_lint
	key=${lint_key[${1//\//-}]}
	if [ -e "$found_right/$key" ] || limited 60 "$log" env -C "$source" shellcheck -x "$1"; then
		: >"$found_right/$key"
		record PASS lint "$1" '' "$log"
	else
		record FAIL lint "$1" "shellcheck has something to say" "$log"
		keep_evidence lint "${1//\//-}" "$log"
	fi
}

# fuzz_targets [NAME...]
fuzz_targets()
{
	local status=0 log=$logs/fuzz.log own=$results.fuzz
	build_tree unit || return
	say "make fuzz-short${*:+: $*}"
	: >"$log"
	limited 600 "$log" make -s -C "$(build_of fuzz)" fuzz-short ${all:+FUZZ_SHORT_SECONDS=10} ${1:+"NAMES=$*"} || status=$?
	# A line of TAP for each target: its name is the test's.
	: >"$own"
	results=$own from_tap fuzz "${1:-}" $status "$log"
	awk -F '\t' -v OFS='\t' 'match($4, /^fuzz [a-z_]+/) { $3 = substr($4, 6, RLENGTH - 5) } 1' "$own" >>"$results"
	! grep -q ^FAIL "$own" || keep_evidence fuzz "${1:-all}" "$log" "$(build_of fuzz)/tests/fuzz/bin"
}

# What git has and the archive in DIR has not, beside what only git reads
not_in_archive()
{
	comm -23 <(cd "$source" && git ls-files 2>/dev/null | grep -vE '^(\.ci/|\.gitignore$|\.editorconfig$|(.*/)?\.clang-format$)' | sort) \
		<(tar -tzf "$1"/slurm-ddp-*.tar.gz | sed 's|^[^/]*/||' | sort)
}

# same_archive DIR: make dist gives the archive that is there once more, with another umask
same_archive()
{
	local archive
	archive=$(echo "$1"/slurm-ddp-*.tar.gz) && mv "$archive" "$archive.first" || return 1
	(umask 077 && make -C "$1" dist) && cmp "$archive.first" "$archive"
}

suite_distcheck()
{
	local dir log=$logs/distcheck.log status=0 tests=() suites=() missing found=$work/config.dist
	build_tree unit || return
	dir=$(build_of distcheck)
	say 'make distcheck'
	# What the package may lack is a file: all of git's are in it, what is installed builds from it, and some tests run
	# that read the tree; with --all each such test, of the package for Python test_python_wheel.py.
	mapfile -t tests < <(cut -f 1 <<<"$tags" | sed 's/\.c$//' | if [ -n "$all" ]; then
		grep -E '\.(sh|py)$|/test_safetensors$' |
			grep -vE '/test_(example_paths|gpt|locale|no_gpu|parallel|preflight|python_torch|train|vision)\.sh$|_torch\.py$|/test_python_(checkpoint|failures|frameworks|hooks|page|progress|stop|versions)\.py$'
	else
		grep -E '/test_(safetensors|api\.sh|floors\.sh|spank_docs\.sh|configure\.sh|python_wheel\.py)$'
	fi)
	# What configure has found for the build holds here, too, except for the variables that it was given.
	[ -n "$all" ] || sed '/^ac_cv_env_/d' "$work/config.gcc" >"$found" 2>/dev/null || : >"$found"
	# With --all the archive is compiled; otherwise the build's objects are taken, of the same files.
	limited 900 "$log" env DDP_OBJECTS="$([ -n "$all" ] || echo "$dir")" make -C "$dir" -j "$jobs" distcheck "$quick_libtool" TESTS="${tests[*]}" \
		DISTCHECK_CONFIGURE_FLAGS="$([ -n "$all" ] || echo "--cache-file=$found")" check_PROGRAMS=tests/unit/test_safetensors noinst_PROGRAMS='examples/allreduce examples/gpt/gpt' || status=$?
	missing=$(not_in_archive "$dir" 2>&1 | tr '\n' ' ')
	# Whoever makes it, the archive has the same bytes.
	if [ $status = 0 ] && ! same_archive "$dir" >>"$log" 2>&1; then missing+='the second make dist made other bytes'; fi
	if [ $status = 0 ] && [ -z "$missing" ]; then
		record PASS distcheck distcheck '' "$log"
	elif [ $status = 0 ]; then
		record FAIL distcheck distcheck "not in the archive: $missing" "$log"
	else
		record FAIL distcheck distcheck "make distcheck ended with status $status" "$log"
		mapfile -t suites < <(find "$dir" -path '*/_build/*' -name test-suite.log)
		keep_evidence distcheck distcheck "$log" "${suites[@]}"
	fi
}
