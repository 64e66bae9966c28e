#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# abi.sh list INCLUDE LIBRARY: prints what a program relies on that was compiled with the headers of the folder INCLUDE
# and loads LIBRARY. A line is a declaration of a function, the value of an enumerator or macro, the size of a structure, or
# where a field lies in it. What is of types comes from the compiler's DWARF, so that none is missed; $CC is the compiler.
# abi.sh symbols INCLUDE LIBRARY: prints the symbols of LIBRARY, which are those functions (test_abi.sh).
# abi.sh update INCLUDE LIBRARY VERSION: writes that to libddp.abi beside this script, and the symbols to Debian's list,
# where new ones are of VERSION.
set -euo pipefail
command=$1 include=$2 library=$3
folder=$(cd "${0%/*}" && pwd)
debian=$folder/../../slurm/packaging/debian/libddp1.symbols
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

compile() { ${CC:-cc} -std=c11 -I"$include" "$@"; }

# Of a die of DWARF: its number, its level, its tag and its attributes, a line each
dies()
{
	readelf --debug-dump=info "$work/types.o" | sed -n \
		-e 's/^ *<\([0-9a-f]*\)><\([0-9a-f]*\)>: Abbrev Number: [0-9]* (DW_TAG_\([a-z_]*\))$/die \2 \1 \3/p' \
		-e 's/^ *<[0-9a-f]*> *DW_AT_name *: (\(indirect\|indexed\)[^)]*): \(.*\)$/name \2/p' \
		-e 's/^ *<[0-9a-f]*> *DW_AT_name *: \([^( ].*\)$/name \1/p' \
		-e 's/^ *<[0-9a-f]*> *DW_AT_\(type\) *: <0x\([0-9a-f]*\)>.*/\1 \2/p' \
		-e 's/^ *<[0-9a-f]*> *DW_AT_\(byte_size\|data_member_location\|upper_bound\|count\|const_value\|decl_file\) *: \(([a-z0-9]*) \)\{0,1\}\(-\{0,1\}[0-9][0-9a-fx]*\).*/\1 \3/p' \
		-e 's/ *$//'
}

# Enumerators, structures and their fields, of the public headers only
types()
{
	echo '#include <ddp.h>' >"$work/types.c"
	compile -g -gdwarf-4 -O0 -fno-eliminate-unused-debug-types -c "$work/types.c" -o "$work/types.o"
	dies | awk '
	function number(text, i, sum) {
		if (text !~ /^0x/) return text
		for (i = 3; i <= length(text); i++)
			sum = sum * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
		return sum
	}
	function parameters(die, i, text) {
		for (i = 1; i <= count; i++)
			if (parent[order[i]] == die && tag[order[i]] == "formal_parameter")
				text = text (text == "" ? "" : ", ") type_of(type[order[i]])
		return text == "" ? "void" : text
	}
	function type_of(die, inner) {
		if (!(die in tag)) return "void"
		inner = die in type ? type_of(type[die]) : "void"
		if (tag[die] == "pointer_type") return inner ~ /\)$/ ? inner : inner (inner ~ /\*$/ ? "*" : " *")
		if (tag[die] == "const_type") return inner ~ /\*$/ ? inner "const" : "const " inner
		if (tag[die] == "array_type") return inner length_of[die]
		if (tag[die] == "subroutine_type") return inner " (*)(" parameters(die) ")"
		if (tag[die] == "structure_type") return "struct " name[die]
		if (tag[die] == "union_type") return "union " name[die]
		if (tag[die] == "enumeration_type") return "enum " name[die]
		return name[die]
	}
	$1 == "die" {
		id = $2; order[++count] = id; level[id] = $3; tag[id] = $4; at[$3] = id; parent[id] = at[$3 - 1]
		next
	}
	$1 == "name" { name[id] = substr($0, 6) }
	$1 == "type" { type[id] = $2 }
	$1 == "byte_size" { size[id] = number($2) }
	$1 == "data_member_location" { place[id] = number($2) }
	$1 == "upper_bound" { length_of[parent[id]] = length_of[parent[id]] "[" (number($2) + 1) "]" }
	$1 == "count" { length_of[parent[id]] = length_of[parent[id]] "[" number($2) "]" }
	$1 == "const_value" { value[id] = number($2) }
	END {
		# A structure without a name of its own has that of its typedef.
		for (i = 1; i <= count; i++) {
			id = order[i]
			if (tag[id] == "typedef" && id in type && name[type[id]] == "") name[type[id]] = name[id]
		}
		# One that has none at all has that of the field; levels are as many as needed, and more.
		for (depth = 0; depth < 4; depth++) for (i = 1; i <= count; i++) {
			id = order[i]
			if (tag[id] == "member" && tag[type[id]] ~ /^(structure|union)_type$/ && name[type[id]] == "" &&
			    name[parent[id]] != "")
				name[type[id]] = name[parent[id]] "." name[id]
		}
		for (i = 1; i <= count; i++) {
			id = order[i]; up = parent[id]
			if (tag[id] ~ /^(structure|union)_type$/ && name[id] ~ /^ddp_/ && id in size)
				print "size " name[id] " " size[id]
			if (tag[id] == "enumerator")
				print "enumerator " name[id] " " value[id]
			if (tag[id] == "typedef" && name[id] ~ /^ddp_/ && tag[type[id]] !~ /^(structure|union|enumeration)_type$/)
				print "type " name[id] " " type_of(type[id])
			if (tag[id] == "member" && tag[up] ~ /^(structure|union)_type$/ && name[up] ~ /^ddp_/)
				printf "field %s %05d %s: %s\n", name[up], place[id], name[id], type_of(type[id])
		}
	}'
}

# Declarations of functions, each in a line without its parameters' line breaks
functions()
{
	compile -E -P "$work/types.c" | tr '\n\t' '  ' | tr ';}' '[\n*]' |
		sed -n 's/__attribute__ *(([^()]*\(([^()]*)[^()]*\)*)) *//g; s/^ *extern "C" *{//; s/  */ /g; s/^ //; s/ $//;
			/^[a-zA-Z_][a-zA-Z0-9_ *]*[ *]ddp_[a-z0-9_]*(.*)$/s/^\([^(]*[ *]\)\(ddp_[a-z0-9_]*\)\((.*\)/function \2: \1\2\3/p'
}

# Macros with values that programs are compiled with, but the version, which changes anyway
macros()
{
	compile -E -dM "$work/types.c" | sed -n 's/^#define \(DDP_[A-Z0-9_]*\) \(.*\)/macro \1 \2/p' |
		grep -vE '^macro DDP_(VERSION[A-Z_]*|API|([A-Z]*_)*H) '
}

symbols() { nm -D --defined-only --with-symbol-versions "$library" | sed -n 's/^[0-9a-f]* [A-Z] \([a-z].*\)/\1/p'; }

list() { { types; functions; macros; } | sort -u; }

# debian_symbols VERSION: Debian's list, where what was in it keeps its version
debian_symbols()
{
	head -n 1 "$debian"
	{
		echo "LIBDDP_1@LIBDDP_1"
		symbols | sed 's/@@/@/'
	} | sort | awk -v version="$1" 'NR == FNR { since[$1] = $2; next } { print " " $1, $1 in since ? since[$1] : version }' \
		"$debian" -
}

case $command in
list|symbols) "$command" ;;
update)
	list >"$work/abi"
	debian_symbols "$4" >"$work/symbols"
	cp "$work/abi" "$folder/libddp.abi"
	cp "$work/symbols" "$debian"
	;;
*) echo "abi.sh: no command $command" >&2; exit 1 ;;
esac
