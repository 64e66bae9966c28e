#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The reference has every function of the public headers, and what libddp.so exports, with their comments.
tests=${0%/*}
include=$tests/../../libruntime/include
headers=("$include/ddp.h" "$include/ddp/"{base,job,comm,optim,model,step,data,state,train}.h)
library=libruntime/.libs/libddp.so
# shellcheck source=tests/support/nothing.sh
. "$tests/../support/nothing.sh"

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
nothing "$(while read -r function; do grep -q "$function(" "$tests/test_null.c" || echo "$function"; done <"$work/functions")" \
	"each is tried with NULL by test_null"
# Of a first program: those in README's table.
sed -n '/^Of the functions, these 25/,/^The contract/p' "$tests/../../README.md" | grep -o 'ddp_[a-z0-9_]*' | sort -u >"$work/first"
nothing "$([ "$(wc -l <"$work/first")" -eq 25 ] || wc -l <"$work/first"; grep -vxF -f "$work/functions" "$work/first")" \
	"README names 25 functions that there are"
if [ -f $library ]; then
	nm -D --defined-only $library | sed -n 's/.* T \(ddp_[a-z0-9_]*\)$/\1/p' >"$work/exported"
	nothing "$(without_words <"$work/exported")" "so is what libddp.so exports"
fi
links=$(grep -o 'href="#[^"]*"' "$page" | sed 's/href="#\(.*\)"/\1/' | sort -u)
nothing "$(for link in $links; do grep -q "id=\"$link\"" "$page" || echo "$link"; done)" "each link leads somewhere"
sed '/^\/\* Sets the rate of the steps from now on/,/\*\//d' "$include/ddp/step.h" >"$work/step.h"
nothing "$(cmp -s "$include/ddp/step.h" "$work/step.h" && echo "the comment of ddp_model_set_learning_rate() is not found in step.h")" \
	"a comment is taken out"
said=$("$tests/../../doc/api-reference" "$include/ddp.h" "$work/step.h" 2>&1 >/dev/null)
expected="api-reference: $work/step.h has no comment on ddp_model_set_learning_rate"
nothing "$([ "$said" = "$expected" ] || echo "it says: \"$said\"")" "the function without it is named"
echo "1..$number"
