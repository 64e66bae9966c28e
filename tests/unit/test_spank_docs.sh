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
# names KIND: those of the list of the plugin's variables
names() { sed -n "s/.*{ \"\([A-Z_]*\)\", NAME_$1 },.*/\1/p" "$tests/../../spank/launch/names.c"; }
listed=$(names '[A-Z]*' | sort)
variables=$({ names RANK; names STEP; names CHOICE; } | sort)
# Rows of the table: the names before the first ;
rows=$(sed -n '/^name;source;meaning/,/^\.TE/s/^\([A-Z][A-Z_, *]*\);.*/\1/p' "$manual" | tr -d ' ' | tr ',' '\n' | sort)
set_ones=$(sed -n 's/.*put(v, "\([A-Z_]*\)".*/\1/p' "$tests/../../spank/launch/variables.c" | sort -u)
if [ -n "$keys" ] && [ -n "$variables" ] && [ -n "$read_variables" ]; then
	nothing "" "keys and variables are found in the source"
else
	nothing "missing: the table of keys, put(), or variables of libddp's" "keys and variables are found in the source"
fi
work=$(mktemp) || exit 1
trap 'rm -f "$work" "$work.variables"' EXIT
cat "$manual" "$tests/../../doc/libddp.3" >"$work"
# shellcheck disable=SC2046,SC2086 # words
{
	nothing "$(missing "$manual" $keys)" "srun-ddp(7) has every key"
	nothing "$(missing "$sample" $keys)" "spank_ddp.conf has every key"
	printf '%s\n' $variables >"$work.variables"
	nothing "$(printf '%s\n' $rows | grep -vx 'PET_\*' | diff - "$work.variables")" "srun-ddp(7)'s table has the variables of a task and no others"
	nothing "$(missing "$manual" $(names SLURM) PET_ TORCHELASTIC_ ROLE_)" "and srun-ddp(7) has the rest"
	nothing "$(printf '%s\n' $listed | uniq -d)" "no variable is listed twice"
	nothing "$(printf '%s\n' $set_ones | grep -vxF "$listed")" "what the plugin sets is in its list"
	nothing "$(missing "$work" $read_variables)" "libddp(3) or srun-ddp(7) has every variable that libddp reads"
}
nothing "$(grep -v '^ *#' "$sample" | grep -v '^$')" "spank_ddp.conf is disabled as installed"
echo "1..$number"
