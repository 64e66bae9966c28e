#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# The reference has every function of the public headers, and what libddp.so exports, with their comments.
tests=${0%/*}
include=$tests/../../libruntime/include
headers=("$include/ddp.h" "$include/ddp/"{base,job,comm,optim,model,step,data,state,train}.h)
library=libruntime/.libs/libddp.so
# shellcheck source=tests/support/checks.sh
. "$tests/../support/checks.sh"

if ! command -v python3 >/dev/null; then
	echo "1..0 # SKIP there is no python3, with which the reference is made"
	exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
page=$work/api.html

# without_words: which of the names in standard input have no paragraph of words in their article
without_words()
{
	awk -v page="$page" '
		BEGIN {
			RS = "<article>"
			while ((getline article <page) > 0) {
				sub(/<\/article>.*/, "", article)
				while (match(article, /<span id="[a-zA-Z_0-9]+"/)) {
					name = substr(article, RSTART + 10, RLENGTH - 11)
					said[name] = article ~ /<p>./
					article = substr(article, RSTART + RLENGTH)
				}
			}
			RS = "\n"
		}
		!said[$1] { print "missing: " $1 }'
}

nothing "$("$tests/../../doc/api-reference" "${headers[@]}" 2>&1 >"$page")" "the reference can be made"
sed -n 's/^DDP_API [^(]*\(ddp_[a-z0-9_]*\)(.*/\1/p' "${headers[@]}" >"$work/functions"
declared=$(cat "${headers[@]}" | grep -c '^DDP_API ')
found=$(wc -l <"$work/functions")
nothing "$([ "$found" -gt 0 ] && [ "$found" -eq "$declared" ] || echo "$found of $declared")" "functions are found in the headers"
nothing "$(without_words <"$work/functions")" "each is told of"
nothing "$(grep -o 'ddp_[a-z0-9_]*(' "$tests/test_null.c" | tr -d '(' | grep -vxF -f - "$work/functions")" \
	"each is tried with NULL by test_null"
sed 's/\\f.//g; s/\\//g' "$tests/../../doc/libddp.3" >"$work/manual"
nothing "$(grep -o 'ddp_[a-z0-9_]*' "$work/manual" | grep -vxF -f - "$work/functions")" \
	"the manual libddp(3) lists each"
# Of a first program: those in README's table.
sed -n '/^Of the functions, these 25/,/^The contract/p' "$tests/../../README.md" | grep -o 'ddp_[a-z0-9_]*' | sort -u >"$work/first"
nothing "$([ "$(wc -l <"$work/first")" -eq 25 ] || wc -l <"$work/first"; grep -vxF -f "$work/functions" "$work/first")" \
	"README names 25 functions that there are"
if [ -f $library ]; then
	nm -D --defined-only $library | sed -n 's/.* T \(ddp_[a-z0-9_]*\)$/\1/p' >"$work/exported"
	nothing "$(without_words <"$work/exported")" "so is what libddp.so exports"
fi
grep -o ' id="[^"]*"' "$page" | sed 's/ id="\(.*\)"/\1/' >"$work/places"
nothing "$(grep -o 'href="#[^"]*"' "$page" | sed 's/href="#\(.*\)"/\1/' | sort -u | grep -vxF -f "$work/places")" "each link leads somewhere"
sed '/^\/\* Sets the rate of the steps from now on/,/\*\//d' "$include/ddp/step.h" >"$work/step.h"
nothing "$(cmp -s "$include/ddp/step.h" "$work/step.h" && echo "the comment of ddp_model_set_learning_rate() is not found in step.h")" \
	"a comment is taken out"
said=$("$tests/../../doc/api-reference" "$include/ddp.h" "$work/step.h" 2>&1 >/dev/null)
expected="api-reference: $work/step.h has no comment on ddp_model_set_learning_rate"
nothing "$([ "$said" = "$expected" ] || echo "it says: \"$said\"")" "the function without it is named"
# A program begins its options as their initialisers, in C and in C++, without a warning.
cat >"$work/program.c" <<'EOF'
#include "ddp.h"
int begin(void);
int begin(void)
{
	ddp_options context = DDP_OPTIONS;
	ddp_model_options model = DDP_MODEL_OPTIONS;
	ddp_loader_options loader = DDP_LOADER_OPTIONS;
	ddp_train_options train = DDP_TRAIN_OPTIONS;
	ddp_load_options load = DDP_LOAD_OPTIONS;
	ddp_schedule schedule = DDP_SCHEDULE;
	ddp_image_transform transform = DDP_IMAGE_TRANSFORM;
	model.powersgd.rank = 4;
	return context.size + model.size + loader.size + train.size + load.size + schedule.size + transform.size > 0;
}
EOF
cp "$work/program.c" "$work/program.cc"
for compiler in "gcc -std=c11" "clang -std=c11" "g++ -std=c++11" "g++ -std=c++20" "clang++ -std=c++11"; do
	command -v "${compiler%% *}" >/dev/null || continue
	case $compiler in *++*) program=$work/program.cc ;; *) program=$work/program.c ;; esac
	# shellcheck disable=SC2086 # a compiler and its option
	nothing "$($compiler -Wall -Wextra -Wpedantic -Werror -I"$include" -fsyntax-only "$program" 2>&1)" \
		"options begin without a warning by $compiler"
done
# What users choose from is in their guide.
enumerators=$(sed -n '/^typedef enum ddp_optimizer {/,/^}/s/^\t\(DDP_[A-Z]*\).*/\1/p' "$include/ddp/optim.h")
nothing "$([ -n "$enumerators" ] || echo "none"; for name in $enumerators; do
	grep -q "^| .$name." "$tests/../../doc/user-guide.md" || echo "$name"; done)" "the user guide's table has each optimizer"
guide=$tests/../../doc/user-guide.md
absent=$(sed -n '/^## What is not offered, and what to use instead/,$p' "$guide" | grep '^|')
nothing "$(for word in mpi join=False DataParallel etcd FSDP ZeRO-3 Offload 'Parameter servers' operators; do
	printf '%s\n' "$absent" | grep -q "^| .*$word.* | " || echo "$word"
done)" "the user guide tells what is not offered, and what to use instead"
nothing "$(grep -oh '\bddp_[a-z0-9_]*()' "$tests"/../../{README.md,doc/*.md,doc/*.[1-8],doc/pictures/*.svg} | sort -u | tr -d '()' | while read -r name; do
	grep -qrw "$name" "$include" || echo "$name"
done)" "the guides name functions that exist"
echo "1..$count"
