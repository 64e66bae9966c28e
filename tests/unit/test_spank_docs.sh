#!/bin/sh
# The manuals and the sample plugstack file name every key and every variable.
tests=${0%/*}
manual=$tests/../../doc/srun-ddp.7
sample=$tests/../../slurm/spank_ddp.conf
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
# All words in quotes like a variable of libddp's, but those of statuses.
read_variables=$(grep -rhoE --include='*.[ch]' '"DDP_[A-Z_]+"' "$tests/../../libruntime" | tr -d '"' |
	grep -vxE 'DDP_OK|DDP_ERR_[A-Z_]+' | sort -u)
variables=$(sed -n 's/.*put(v, "\([A-Z_]*\)".*/\1/p' "$tests/../../spank/launch/variables.c" | sort -u)
if [ -n "$keys" ] && [ -n "$variables" ] && [ -n "$read_variables" ]; then
	nothing "" "keys and variables are found in the source"
else
	nothing "missing: the table of keys, put(), or variables of libddp's" "keys and variables are found in the source"
fi
work=$(mktemp) || exit 1
trap 'rm -f "$work"' EXIT
cat "$manual" "$tests/../../doc/libddp.3" >"$work"
# shellcheck disable=SC2086 # words
{
	nothing "$(missing "$manual" $keys)" "srun-ddp(7) has every key"
	nothing "$(missing "$sample" $keys)" "spank_ddp.conf has every key"
	nothing "$(missing "$manual" $variables)" "srun-ddp(7) has every variable"
	nothing "$(missing "$work" $read_variables)" "libddp(3) or srun-ddp(7) has every variable that libddp reads"
}
nothing "$(grep -v '^ *#' "$sample" | grep -v '^$')" "spank_ddp.conf is disabled as installed"
echo "1..$number"
