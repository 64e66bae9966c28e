#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# The manuals name every key, every variable and every option of the tools, and nothing that is none.
tests=${0%/*}
manual=$tests/../../doc/srun-ddp.7
manual8=$tests/../../doc/spank_ddp.8
sample=$tests/../../slurm/spank_ddp.conf
# shellcheck source=tests/support/checks.sh
. "$tests/../support/checks.sh"

# missing FILE WORD...: the words that the file lacks
missing()
{
	file=$1
	shift
	for word; do
		sed 's/\\//g' "$file" | grep -qw -e "$word" || printf 'missing: %s\n' "$word"
	done
}

table=$(sed -n '/^static const struct option options/,/^};/p' "$tests/../../spank/options/options.c" | tr -d '\n' |
	sed 's/\t{ \.name/\n.name/g')
# Its rows: KEY, a tab, and what it takes
rows_of_options=$(printf '%s\n' "$table" | sed -n 's/^\.name = "\([a-z-]*\)".*\.expects = "\([^"]*\)".*/\1\t\2/p')
keys=$(printf '%s\n' "$rows_of_options" | cut -f 1)
# The entries of the section KEYS: KEY, a tab, and the rest of the entry's heading
entries=$(sed -n '/^\.SH KEYS/,/^\.SH ENV/p' "$manual" | grep -A 1 '^\.TP' | grep '^\.B' |
	sed 's/\\f.//g; s/\\//g; s/^\.B[IR]* *//; s/^\([a-z-]*\)\(.*\)/\1\t\2/')
# unsaid: keys whose entry lacks a word that the key takes. That a key takes yes and no, one sentence
# says for all such keys.
unsaid()
{
	printf '%s\n' "$rows_of_options" | grep -xE '[a-z-]+	([a-z0-9, ]+)( or [a-z0-9]+)' |
		while IFS='	' read -r key takes; do
			case $takes in
			"no value, yes"*) set -- "$switches" "$key" ;;
			*) set -- "$(printf '%s\n' "$entries" | grep "^$key	")" '' ;;
			esac
			for word in ${2:-$(printf '%s' "$takes" | sed 's/,//g; s/ or / /')}; do
				printf '%s\n' "$1" | grep -qw -e "$word" || echo "$key: $word"
			done
		done
}
switches=$(sed -n '/^also take$/q; /^\.BR launcher/,$p' "$manual" | sed 's/\\//g')
# All words in quotes like a variable of libddp's, but those of statuses, and the one that tests alone set.
read_variables=$(grep -rhoE --include='*.[ch]' '"DDP_[A-Z_]+"' "$tests/../../libruntime" | tr -d '"' |
	grep -vxE 'DDP_OK|DDP_ERR_[A-Z_]+|DDP_TEST_SMALL' | sort -u)
# names KIND: those of the list of the plugin's variables
names() { sed -n "s/.*{ \"\([A-Z_]*\)\", NAME_$1 },.*/\1/p" "$tests/../../spank/launch/names.c"; }
# Keys that are no site's to set
for_users=$(printf '%s\n' "$table" | sed -n 's/^\.name = "\([a-z-]*\)".*\.not_for_sites = .*/\1/p')
# All words of texts that look like keys of --ddp
written=$({
	sed 's/\\//g' "$tests"/../../doc/*.[1378] "$tests"/../../doc/*.md "$tests/../../README.md" |
		grep -oE -e '--ddp=[a-z][a-z=,.0-9/-]*' | sed 's/^--ddp=//' | tr ',' '\n'
	sed -n 's/^#   \(optional spank_ddp.so \)\{0,1\}\([a-z].*\)/\2/p' "$sample" | tr ' ' '\n' | grep '='
} | sed 's/=.*//; s/^max-//' | grep -vxF -e locked -e comment | sort -u)
# Variables that stand in the table of options
told=$(printf '%s\n' "$table" | sed -n 's/.*\.variable = "\([A-Z_]*\)".*/\1/p')
listed=$({ names '[A-Z]*'; printf '%s\n' "$told"; } | sort)
variables=$({ names RANK; names STEP; names CHOICE; names LIST; printf '%s\n' "$told"; } | sort)
handed=$(grep -rhoE --include='*.[ch]' '"SLURM_DDP_[A-Z_]+"' "$tests/../../spank" | tr -d '"' | sort -u)
# Rows of the table: the names before the first ;
rows=$(sed -n '/^name;source;meaning/,/^\.TE/s/^\([A-Z][A-Z_, *]*\);.*/\1/p' "$manual" | tr -d ' ' | tr ',' '\n' | sort)
set_ones=$(sed -n 's/.*put(v, "\([A-Z_]*\)".*/\1/p' "$tests/../../spank/launch/variables.c" | sort -u)
if [ -n "$keys" ] && [ -n "$told" ] && [ -n "$set_ones" ] && [ -n "$handed" ] && [ -n "$switches" ] &&
	[ -n "$for_users" ] && [ -n "$written" ] &&
	[ -n "$read_variables" ]; then
	nothing "" "keys and variables are found in the source"
else
	nothing "missing: the table of options, put(), or variables of libddp's" "keys and variables are found in the source"
fi
work=$(mktemp) || exit 1
trap 'rm -f "$work" "$work.variables" "$work.keys" "$work.help"' EXIT
cat "$manual" "$tests/../../doc/libddp.3" >"$work"
# shellcheck disable=SC2046,SC2086 # words
{
	printf '%s\n' $keys >"$work.keys"
	nothing "$(printf '%s\n' "$entries" | cut -f 1 | diff - "$work.keys")" "srun-ddp(7) has an entry for each key, in the order of spank/options/options.c"
	nothing "$(unsaid)" "and it has the words that the key takes"
	nothing "$(missing "$manual8" $for_users)" "spank_ddp(8) has the keys that are no site's to set"
	nothing "$(printf '%s\n' $written | grep -vxF -f "$work.keys")" "manuals, guides and the sample name no key that is none"
	printf '%s\n' $variables >"$work.variables"
	nothing "$(printf '%s\n' $rows | grep -vx 'PET_\*' | diff - "$work.variables")" "srun-ddp(7)'s table has the variables of a task and no others"
	nothing "$(missing "$manual" $(names SLURM) $(names RENUMBERED) PET_ TORCHELASTIC_ ROLE_)" "and srun-ddp(7) has the rest"
	nothing "$(printf '%s\n' $listed | uniq -d)" "no variable is listed twice"
	nothing "$(printf '%s\n' $set_ones | grep -vxF "$listed")" "what the plugin sets is in its list"
	nothing "$(printf '%s\n' $handed | grep -vxF "$listed")" "what srun hands to its nodes is in its list"
	nothing "$(missing "$work" $read_variables)" "libddp(3) or srun-ddp(7) has every variable that libddp reads"
}
# differs TOOL COMMAND...: the options that only its help or only its manual has
differs()
{
	tool=$1
	shift
	COLUMNS=80 "$@" --help | sed -n 's/^ \{1,4\}\(-[a-z], \)\{0,1\}\(--[a-z-]*\).*/\2/p' | sort -u >"$work.help"
	sed -n '/^\.SH OPTIONS/,/^\.SH [^O]/p' "$tests/../../doc/$tool.1" | grep -A 1 '^\.TP' | grep '^\.B' | sed 's/\\-/-/g; s/\\f.//g' |
		grep -oE -e '--[a-z-]+' | sort -u | diff - "$work.help"
	[ -s "$work.help" ] || echo "missing: the help of $tool"
}
nothing "$(differs ddp-status spank/status/ddp-status)" "ddp-status(1) has the options of the program's help"
nothing "$(differs ddp-preflight libruntime/preflight/ddp-preflight)" "ddp-preflight(1) too"
nothing "$(differs ddp-failures python3 "$tests/../../spank/status/ddp-failures")" "ddp-failures(1) too"
nothing "$(differs ddp-report python3 "$tests/../../libruntime/watch/ddp-report")" "ddp-report(1) too"
nothing "$(grep -v '^ *#' "$sample" | grep -v '^$')" "spank_ddp.conf is disabled as installed"
echo "1..$count"
