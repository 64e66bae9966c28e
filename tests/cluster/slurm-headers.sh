#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 300
# all: cluster
# configure finds Slurm's headers wherever they are, and the plugin compiles with
# those of each release that Debian's archives give: fetched into this test's
# folder by an apt of its own, from the mirror that this machine uses.
# TEST_SLURM: installations of Slurm to try besides, DIR:DIR..., each with its headers
# in DIR/include/slurm.
. "$source/tests/cluster/lib.sh"

# What Debian 12, 13 and newer have. "testing" gets what was in sid before.
suites=(bookworm bookworm-backports trixie trixie-backports sid experimental)
installed=/usr/include/slurm/slurm_version.h
apt=$work/apt
compilers=()
for compiler in gcc clang; do
	if command -v "$compiler" >/dev/null; then compilers+=("$compiler"); fi
done

# ---- the archives ----------------------------------------------------------------

# The mirror's address, as this machine's own apt has it.
find_mirror()
{
	apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Component: main' \
		'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1
}

# An apt that shares nothing with the machine's but how it reaches servers.
write_apt()
{
	local suite
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts" || return 1
	for suite in "${suites[@]}"; do
		[ "$suite" = "$own_suite" ] || echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $1 $suite main"
	done >"$apt/sources.list"
	{
		apt-config dump | grep '^Acquire::'
		cat <<-END
		Dir::State::lists "$apt/lists";
		Dir::State::status "/dev/null";
		Dir::Cache "$apt/cache";
		Dir::Etc::sourcelist "$apt/sources.list";
		Dir::Etc::sourceparts "$apt/parts";
		Dir::Etc::preferencesparts "$apt/parts";
		Dir::Etc::main "$apt/none";
		Dir::Etc::parts "$apt/parts";
		Acquire::Languages "none";
		APT::Sandbox::User "root";
		pkgCacheFile::Generate "false";
		END
	} >"$apt/apt.conf"
}

own_apt() { APT_CONFIG=$apt/apt.conf timeout -k 5 120 "$@"; }

# field_of SUITE FIELD: of that suite's libslurm-dev
field_of()
{
	local index
	index=$(compgen -G "$apt/lists/*_dists_$1_main_binary-*_Packages*") || return 1
	own_apt /usr/lib/apt/apt-helper cat-file "$index" | awk -v field="$2:" '
		$1 == "Package:" { ours = $2 == "libslurm-dev" }
		ours && $1 == field { print $2 }'
}

# fetch_headers SUITE: leaves them in $work/SUITE/usr/include
fetch_headers()
{
	own_apt /usr/lib/apt/apt-helper download-file "$mirror/$(field_of "$1" Filename)" \
		"$work/$1.deb" "SHA256:$(field_of "$1" SHA256)" &&
		dpkg-deb -x "$work/$1.deb" "$work/$1"
}

# ---- configure ---------------------------------------------------------------------

# A configure of which only Slurm's part is left. It runs in a second.
make_configure()
{
	mkdir -p "$work/configure/m4" && cd "$work/configure" || return 1
	cp "$source/m4/packages.m4" m4 || return 1
	cat >configure.ac <<-'END'
	AC_INIT([slurm-only], [1])
	AC_CONFIG_MACRO_DIR([m4])
	AC_PROG_CC
	AM_CONDITIONAL([AMDEP], [false])
	DDP_WITH_SLURM
	AS_ECHO(["summary: $ddp_slurm_summary"])
	AS_ECHO(["flags: $SLURM_CFLAGS"])
	END
	aclocal -I m4 && autoconf
}

# configure_with NAME VERSION FOLDER OPTION...: it finds that, and sets slurm_flags
configure_with()
{
	capture "$work/configure/configure" "${@:4}"
	prints "^summary: for Slurm $2, headers in $3$" "$1: configure says which Slurm it found"
	slurm_flags=$(sed -n 's/^flags: *//p' <<<"$output")
}

# compile NAME: the files that include Slurm's headers, with the project's warnings
compile()
{
	local compiler file flags
	read -r -a flags <<<"$(sed -n 's/^WARNING_CFLAGS = //p' "$build/Makefile") $slurm_flags"
	for compiler in "${compilers[@]}"; do
		for file in $(cd "$source" && grep -l '^#include <slurm/' -r spank --include='*.c'); do
			capture "$compiler" -include "$build/config.h" -I"$source/libruntime/include" -I"$source/libruntime" -I"$source" \
				-std=gnu11 -fvisibility=hidden "${flags[@]}" -Werror -fsyntax-only "$source/$file"
			[ "$status" = 0 ] || { not_ok "$1: the plugin compiles" "$compiler $file: status $status"; return; }
		done
	done
	ok "$1: the plugin compiles"
}

# try WHERE INCLUDE-FOLDER CONFIGURE-OPTION... 20.11 has its version in slurm.h.
try()
{
	local number version
	read -r -a number <<<"$(sed -n 's/^#define SLURM_VERSION_NUMBER *0x\(..\)\(..\)\(..\).*/0x\1 0x\2 0x\3/p' \
		"$2/slurm/slurm.h" "$2/slurm/slurm_version.h" 2>/dev/null)"
	[ ${#number[@]} = 3 ] || { not_ok "$1: there are headers" "no version is in $2/slurm/slurm_version.h or slurm.h"; return; }
	version=$(printf '%d.%02d.%d' "${number[@]}")
	configure_with "$1, Slurm $version" "$version" "$2" "${@:3}"
	compile "$1, Slurm $version"
}

# ---- the tests -----------------------------------------------------------------------

for program in aclocal autoconf "${compilers[0]:-gcc}"; do
	command -v "$program" >/dev/null || skip_all "$program is missing"
done
[ -f "$build/Makefile" ] || skip_all "there is no build"
check "configure's part for Slurm can be run by itself" make_configure

own_suite=
if [ -e $installed ]; then
	# Of the machine's own release, these are the archive's.
	own_suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
	try "installed" /usr/include
	configure_with "installed, by --with-slurm=/usr" "[0-9.]+" /usr/include --with-slurm=/usr
	same '' "$slurm_flags" "the system's folder is not named a second time"
else
	skip "installed" "there is no $installed"
fi
capture "$work/configure/configure" --with-slurm="$work/nowhere"
status_is_not 0 "--with-slurm of a folder without headers is refused"
prints "there is no $work/nowhere/include/slurm/spank.h" "and the file that is missing is named"

IFS=: read -r -a prefixes <<<"${TEST_SLURM-}"
for prefix in "${prefixes[@]}"; do
	try "$prefix" "$prefix/include" --with-slurm="$prefix"
done

mirror=
if command -v apt-get >/dev/null; then mirror=$(find_mirror); fi
if [ -z "$mirror" ]; then
	skip "releases of Debian's archives" "this machine's apt knows no Debian mirror"
	done_testing
	exit 0
fi
mirror=${mirror%/}
write_apt "$mirror" || exit 1
fetched=$(own_apt apt-get -q update 2>&1)
seen=
for suite in "${suites[@]}"; do
	[ "$suite" != "$own_suite" ] || continue
	if ! version=$(field_of "$suite" Version); then
		skip "Debian $suite" "no list of packages: $(grep -E "^(E|W|Err).*/${suite}[/ ]" <<<"$fetched" | head -n 1)"
		continue
	fi
	# Backports mostly have none, and what one suite has another may have, too.
	[ -n "$version" ] && [[ " $seen " != *" $version "* ]] || continue
	seen+=" $version"
	capture fetch_headers "$suite"
	if [ "$status" != 0 ]; then
		skip "Debian $suite" "libslurm-dev $version was not fetched: $(tail -n 1 <<<"$output")"
		continue
	fi
	try "Debian $suite" "$work/$suite/usr/include" --with-slurm="$work/$suite/usr"
done
done_testing
