# SPDX-License-Identifier: Apache-2.0
# builds.sh: the builds of tests/run, and the suites that need a build or none.
# shellcheck shell=bash disable=SC2154 # tests/run sets source, work, logs, jobs, build

# Enough to know that such a build links, trains on a node, and refuses several; and that
# clang's code for kernels, which no sanitizer keeps from vectors, computes what gcc's does.
bare_tests()
{
	printf '%s\n' test_comm_random test_comm_faults test_context test_job \
		test_comm_kernels test_kernel_product test_kernel_optim test_kernel_images \
		test_convolution_onednn test_gpt_model test_training
}
# Enough to know that a build without one of these alone links and runs.
lean_tests() { printf '%s\n' test_context test_job test_kernel_product; }

child=''
end_child() { [ -z "$child" ] || kill "$child" 2>/dev/null; }

# limited SECONDS LOG COMMAND...: with a deadline, output to LOG. It runs in the
# background, so that a signal to us is heeded at once. If `session` is set, it is a
# session of its own; timeout begins it, and so ends all that is in it.
limited()
{
	local status=0
	${session:+setsid} timeout -k 15 "$1" "${@:3}" >>"$2" 2>&1 </dev/null &
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

# The thread sanitizer finds a race of UCX's own, of its threads with its end, in test_comm_openings, and test_finalize waits
# too long there. It has nothing to see in what is one thread from beginning to end
# (strace -f -e trace=clone3 tells), as kernels are where OpenMP may use one only; nor in
# test_comm_travel, whose algorithms test_comm_random runs in the same threads, nor in
# test_example_paths.sh, test_train.sh, test_no_gpu.sh, test_parallel.sh, test_preflight.sh, test_vision.sh and trace_gpt.py, whose threads, those that read among them, are libddp's as in
# test_gpt.sh, nor in
# test_replan and test_training_groups, whose steps test_engine and test_training take in the same threads, nor in
# test_checkpoint_load, test_comm_in_place and test_nccl_reductions: test_checkpoint loads, test_comm_random runs in
# place, and test_comm_nccl reduces in the same threads.
unwatched_tests=(test_comm_openings test_finalize test_comm_travel test_checkpoint_load test_comm_in_place test_nccl_reductions test_agreement test_bucket test_comm_blocks test_comm_combine test_comm_kernels
	test_comm_nics test_comm_plan test_convolution_onednn test_device_cuda test_example_paths.sh test_gpt_model test_images test_job
	test_kernel_bf16 test_kernel_cuda test_kernel_graph_cuda test_kernel_images test_kernel_images_cuda test_kernel_layers test_kernel_optim
	test_kernel_product test_kernel_queue test_links test_model_graph_cuda test_model_refusals test_net_model test_no_gpu.sh test_nodes test_null test_optim test_optimizers_cuda test_replan
	test_options test_parallel.sh test_preflight test_preflight.sh test_safetensors test_sampler test_spank_blame test_spank_check test_spank_gpu
	test_spank_identity test_spank_judge test_spank_nodelist test_spank_options test_spank_port
	test_spank_prepare test_spank_report test_spank_srun_options test_spank_stall test_spank_step
	test_spank_supervise test_spank_variables test_spank_witness test_status test_status_cluster test_store test_store_faults test_store_handover test_train.sh test_training_groups test_vision.sh
	test_watch trace_gpt.py)
tsan_tests() { compiled_tests | grep -vxF -f <(printf '%s\n' "${unwatched_tests[@]}"); }

# With --once, these compiled tests of `unit` run there, and it leaves the others to `asan`, which runs them, too: what
# they look at is the same whatever compiles it. These are
# - those of which asan leaves out cases or all (test_run.sh knows them);
# - test_abi.sh, which reads the library that users get;
# - those of numbers, as gcc's code for vectors is no other build's, and what trains by them;
# - three of threads, which are at their fastest here;
# - a program from its start to its end. The clusters have this build's libddp, plugin and examples, too.
plain_tests=(ddp_torch.py optim_torch.py powersgd_torch.py readme.sh sampler_torch.py test_comm_groups test_comm_random test_comm_share
	test_comm_shrink_net test_kernels_library.sh test_locale.sh test_netplugin_symbols.sh test_parallel.sh test_shards test_spank_symbols.sh
	test_train.sh test_abi.sh
	test_bf16_params test_comm_blocks test_comm_combine test_comm_kernels test_convolution_onednn test_gpt_model test_images
	test_kernel_bf16 test_kernel_device test_kernel_graph test_kernel_images test_kernel_images_device test_kernel_inner
	test_kernel_layers test_kernel_optim test_kernel_product test_kernel_queue test_loss_scale test_model test_model_graph test_net_model
	test_optim test_optimizers test_optimizers_device test_powersgd test_sampler test_sync_batch_norm test_training
	comm_soak test_comm_threads test_tcp_threads
	test_gpt.sh)
# What `unit` leaves to `asan` with --once
twice_tests() { compiled_tests | grep -vxF -f <(printf '%s\n' "${plain_tests[@]}"); }

# Makes the builds while tests run, which wait more than they compute.
build_ahead()
{
	local suite
	builder=
	for suite in "${built_suites[@]}"; do
		[ -z "$(wanted "$suite")" ] || build_tree "$suite"
	done
}

# await_build DIR: until the builder has made it, or could not
await_build()
{
	while [ -n "$builder" ] && [ ! -e "$1/.built" ] && [ ! -e "$1/.failed" ] && kill -0 "$builder" 2>/dev/null; do
		sleep 0.2
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

# libtool's own script takes 40 s of processor time for each build.
readonly quick_libtool="LIBTOOL=$CONFIG_SHELL $source/tests/support/quick-libtool"

# What no-ucx, no-pmix and no-blas are about, in config.h
readonly lean_words='HAVE_(UCX|PMIX|OPENBLAS)'

# start_lean DIR SUITE: the build of `bare`, less what depends on its configuration. These are few
# files, as no header asks for it.
start_lean()
{
	local file
	build_tree bare || return 1
	step "$2" "copying the build of bare ($2)" 120 "$logs/build-$2.log" cp -a "$work/lean/." "$1" || return 1
	if grep -rlE "$lean_words" "$source"/{libruntime,kernels,examples,tests} --include='*.h' >>"$logs/lean.log"; then
		step bare "a header depends on what is there: all has to be compiled anew" 1 "$logs/lean.log" false
		return 1
	fi
	while read -r file; do
		rm -f "$1/${file%/*}/"*"${file##*/}".{o,lo}
	done < <(cd "$source" && grep -rlE "$lean_words" libruntime kernels examples tests --include='*.c' | sed 's/\.c$//')
	find "$1" -name '*.la' -delete
}

# plan_build: sets what make_tree has of its own for `suite`
plan_build()
{
	case $suite in
	bare|no-*)
		options=(CC=clang --without-{onednn,slurm,openmpi,mpich,cuda} --cache-file="$work/config.clang")
		flags=(CFLAGS=-O1 LDFLAGS='-Wl,--no-undefined-version') # as lld has it, from 16 on
		mapfile -t targets < <(echo examples/allreduce; tests_of "$suite" | programs)
		if [ "$suite" = bare ]; then
			options+=(--without-{ucx,pmix,blas})
		else
			options+=("--without-${suite#no-}")
			start_lean "$dir" "$suite" || return 1
		fi ;;
	asan) options=(CC=clang --disable-cuda-kernels '--enable-sanitizer=address,undefined' --cache-file="$work/config.clang")
		flags=(CFLAGS='-g1 -O1') ;;
	# gcc warns of fences, which the thread sanitizer does not know.
	tsan) options=(--disable-cuda-kernels --enable-sanitizer=thread --cache-file="$work/config.gcc")
		flags=(CFLAGS='-g1 -O1 -Wno-tsan')
		targets+=("check_PROGRAMS=$(tsan_tests | programs | paste -s -d ' ')") ;;
	*) suite=unit options=(--cache-file="$work/config.gcc")
		[ -z "$once" ] || targets+=("check_PROGRAMS=$(wanted unit | programs | paste -s -d ' ')") ;;
	esac
	# The linker that takes least time, but where it is the product's.
	[[ $suite != @(asan|tsan) ]] || ! command -v ld.gold >/dev/null || flags+=(LDFLAGS=-fuse-ld=gold)
	# No test runs the benchmarks and the programs of clusters in these builds.
	[[ $suite != @(asan|tsan) ]] || flags+=("noinst_PROGRAMS=examples/allreduce examples/gpt/gpt $([ "$suite" = tsan ] ||
		echo examples/parallel/parallel examples/scaling examples/vision/mnist_mlp examples/vision/mnist_cnn examples/vision/synthetic)")
}

# make_tree SUITE DIR
make_tree()
{
	# Suites wait for builds, which get more of the cores so: Linux shares them between sessions (sched(7), autogroup),
	# and each test is one. Of what debuggers know, stacks take lines and names only, which compile faster.
	local suite=$1 dir=$2 session=yes flags=(CFLAGS='-g1 -O2') options=() targets=(check TESTS=) make=(make -j $((2 * jobs)) "$quick_libtool")
	# Of the kernels for GPUs, nvcc takes as long for each kind of GPU, and for what makes them fast.
	local one_arch=('NVCC_ARCHS=-gencode arch=compute_80,code=sm_80' 'NVCCFLAGS=-Xcicc -O1 -Xptxas -O0')
	plan_build && cd "$dir" || return 1
	# A build that is made once needs no dependencies. A compiler finds in the system what it found before; flags that
	# make is told leave that as it is.
	step "$suite" "configuring ($suite)" 180 "$logs/build-$suite.log" \
		"$source/configure" --prefix="$work/prefix" --disable-dependency-tracking --enable-werror "${options[@]}" || return 1
	# clang takes six times as long to optimize these loops under its sanitizers, and 150 times as long for the product's;
	# it finds no more in them.
	if [ "$suite" = asan ]; then
		step asan "building the loops (asan)" 300 "$logs/build-asan.log" "${make[@]}" CFLAGS='-g1 -O0' \
			libruntime/comm/ops/libddpcore_la-kernels{,_avx2,_avx512}.lo \
			kernels/cpu/libproduct_avx512_la-product_avx512.lo || return 1
	fi
	if [[ $suite != @(bare|no-*) ]]; then
		step "$suite" "building ($suite)" 900 "$logs/build-$suite.log" "${make[@]}" "${one_arch[@]}" "${flags[@]}" all || return 1
	fi
	step "$suite" "building the tests ($suite)" 900 "$logs/build-$suite.log" "${make[@]}" "${flags[@]}" "${targets[@]}" || return 1
	# For start_lean: the build itself is changed by its tests.
	[ "$suite" != bare ] ||
		step bare "keeping the build (bare)" 120 "$logs/build-bare.log" cp -a "$dir" "$work/lean" || return 1
	compile_others
}

# What a compiler has to say of other programs it says without linking them: clang of those that no test runs under its
# sanitizers, and gcc of tests that only clang has compiled.
compile_others()
{
	local targets=(SANITIZER_CFLAGS= CCLD=true)
	case $suite$once in
	asan*) targets+=(CFLAGS=-fsyntax-only all) ;;
	tsanyes) mapfile -t -O 2 targets < <(echo CFLAGS=-O0; twice_tests | grep -vxF -f <(tsan_tests) | programs) ;;
	*) return ;;
	esac
	step "$suite" "compiling the other programs ($suite)" 900 "$logs/build-$suite.log" "${make[@]}" "${targets[@]}"
}

# ---- make check ----------------------------------------------------------------------

# The programs and scripts that the makefiles give to make check, by path
test_paths()
{
	sed -e ':join' -e '/\\$/{N;s/\\\n/ /;b join' -e '}' "$source"/tests/*.mk "$source"/tests/*/*.mk |
		sed -n 's/^\(check_PROGRAMS\|TESTS\) *+= *//p' | tr -s '[:blank:]' '\n' | grep '^tests/' | awk '!seen[$0]++'
}
unit_tests() { test_paths | sed 's|.*/||'; }
compiled_tests() { unit_tests | grep -vxF "$(printf '%s\n' "${uncompiled_tests[@]}")"; }
path_of() { test_paths | grep -E "/$1\$"; }
# programs: of the names of tests that it reads, the paths of those that are compiled
programs() { grep -vE '\.(sh|py)$|^test_harness$' | while read -r name; do path_of "$name"; done; }

# check_tree SUITE NAME...: make check in its build, of these tests
check_tree()
{
	local suite=$1 dir status=0 name paths=() before targets=(check)
	dir=$(build_of "$suite")
	# Not the programs that these suites do without.
	[[ $suite$once == unit ]] || targets=(check-TESTS check_PROGRAMS=)
	shift
	mapfile -t paths < <(test_paths | grep -E "/($(IFS='|' && echo "$*"))\$")
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

# from_check SUITE BUILD: records what make check left behind: a .trs file for
# each test that ended, and in its .log a line for each result.
from_check()
{
	local test log name all=$results
	# Those of one test first: all together are thousands.
	results=$all.$1
	while read -r test; do
		log=${test%.trs}.log name=$(basename "$test" .trs)
		awk -v suite="$1" -v name="$name" -v log_file="$log" '
			/^(PASS|FAIL|SKIP|XFAIL|XPASS|ERROR): tests\// {
				kind = substr($1, 1, length($1) - 1)
				text = $0
				sub(/^[A-Z]+: [^ ]+ *(- *|[0-9]+ *-? *)?/, "", text)
				kind = kind == "PASS" || kind == "SKIP" ? kind : kind == "XFAIL" ? "PASS" : "FAIL"
				printf "%s\t%s\t%s\t%s\t%s\n", kind, suite, name, text, log_file
				any = 1
			}
			END { if (!any) printf "FAIL\t%s\t%s\tno result\t%s\n", suite, name, log_file }
		' "$log" >"$results"
		[ "$(count FAIL)" = 0 ] || keep_evidence "$1" "$name" "$log"
		ended "$1" "$name" "$(sed -n 's/^# took \(.* s of CPU\)$/\1/p' "$log" | tail -n 1)"
		cat "$results" >>"$all"
	done < <(find "$2/tests" -name '*.trs' | sort)
	results=$all
}

# ---- lint, fuzz, distcheck -------------------------------------------------------------

# The tree's shell scripts, by path
scripts()
{
	local file
	while read -r file; do
		if [[ $file == *.sh ]] || head -n 1 "$source/$file" 2>/dev/null | grep -qE '^#!/bin/(ba)?sh|^#!/usr/bin/env bash'; then
			echo "$file"
		fi
	done < <(cd "$source" && { git ls-files 2>/dev/null || find slurm tests .ci examples -type f; } |
		grep -vE '\.(c|h|m4|am|ac|mk|md|in|[0-9])$')
}

lint_script()
{
	local log
	log=$logs/lint-${1//\//-}.log
	if ! command -v shellcheck >/dev/null; then
		record SKIP lint "$1" "shellcheck is not installed" ''
	elif limited 60 "$log" env -C "$source" shellcheck -x "$1"; then
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
	limited 600 "$log" make -s -C "$(build_of fuzz)" fuzz-short ${1:+"NAMES=$*"} || status=$?
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
	local dir log=$logs/distcheck.log status=0 tests=() suites=() missing
	build_tree unit || return
	dir=$(build_of distcheck)
	say 'make distcheck'
	# What the package may lack is a file: all of git's are in it, what is installed
	# builds from it, and the tests run that read the tree. `unit` has run the rest. Of the
	# package for Python, test_python_wheel.py has all files.
	mapfile -t tests < <(test_paths | grep -E '\.(sh|py)$|/test_safetensors$' |
		grep -vE '/test_(example_paths|gpt|locale|no_gpu|parallel|preflight|python_torch|train|vision)\.sh$|_torch\.py$|/test_python_(checkpoint|failures|frameworks|hooks|page|progress|stop|versions)\.py$')
	limited 900 "$log" make -C "$dir" -j "$jobs" distcheck "$quick_libtool" TESTS="${tests[*]}" \
		check_PROGRAMS=tests/unit/test_safetensors noinst_PROGRAMS='examples/allreduce examples/gpt/gpt' || status=$?
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
