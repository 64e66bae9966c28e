#!/bin/sh
# The manual and the sample plugstack file name every key and every variable.
tests=${0%/*}
manual=$tests/../../doc/ddp.7
sample=$tests/../../slurm/plugstack.conf.d/spank_ddp.conf
# shellcheck source=tests/support/nothing.sh
. "$tests/../support/nothing.sh"

# missing FILE WORD...: the words that the file lacks
missing()
{
	file=$1
	shift
	for word; do
		sed 's/\\//g' "$file" | grep -qw -e "$word" || printf 'missing: %s\n' "$word"
	done
}

keys=$(sed -n '/^static const struct option_key keys/,/^};/s/.*{ "\([a-z-]*\)".*/\1/p' "$tests/../../spank/options.c")
variables=$(sed -n 's/.*put(v, "\([A-Z_]*\)".*/\1/p' "$tests/../../spank/launch/variables.c" | sort -u)
if [ -n "$keys" ] && [ -n "$variables" ]; then
	nothing "" "keys and variables are found in the source"
else
	nothing "missing: the table of keys, or put()" "keys and variables are found in the source"
fi
# shellcheck disable=SC2086 # words
{
	nothing "$(missing "$manual" $keys)" "ddp(7) has every key"
	nothing "$(missing "$sample" $keys)" "spank_ddp.conf has every key"
	nothing "$(missing "$manual" $variables)" "ddp(7) has every variable"
}
nothing "$(grep -v '^ *#' "$sample" | grep -v '^$')" "spank_ddp.conf is disabled as installed"
echo "1..$number"
