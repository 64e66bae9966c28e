#!/bin/bash
# nodes: 0
# seconds: 900
# The RPM packages: built from this tree, tied to Slurm's release, and clean by
# rpmlint. Not installed: the machines of this test have no RPM database.
. "$source/tests/cluster/lib.sh"

command -v rpmbuild >/dev/null || skip_all "rpmbuild is missing (rpm, rpm-build)"
header=/usr/include/slurm/slurm_version.h
[ -e "$header" ] || skip_all "Slurm's headers are missing (libslurm-dev, slurm-devel)"

packages=$work/packages
spec=$source/slurm/packaging/rpm/slurm-ddp.spec
nodeps=
if command -v dpkg >/dev/null; then nodeps=--nodeps; fi

# Neither optimized nor packed well: what is tested is what the packages hold.
printf '%s\n' '%_binary_payload w1.gzdio' >"$work/.rpmmacros"
capture env HOME="$work" CFLAGS='-g1 -O0' "$source/slurm/packaging/build-rpm" --output "$packages" $nodeps
status_is 0 "rpmbuild builds the packages"
[ "$status" = 0 ] || { done_testing; exit 1; }
same 'libddp libddp-devel slurm-ddp-doc slurm-ddp-plugin slurm-ddp-tools ' \
	"$(rpm -qp --qf '%{NAME}\n' "$packages"/*.rpm | grep -v debug | sort | tr '\n' ' ')" \
	"plugin, tools, library, -devel and doc are packages of their own"

rpm_of() { echo "$packages/$1"-[0-9]*.rpm; }
# shellcheck disable=SC2086 # two numbers
release_of() { set -- $1; printf '%d.%02d' "$1" "$2"; }
number=$(sed -n 's/^#define SLURM_VERSION_NUMBER *\(0x......\).*/\1/p' "$header")
major=$((number >> 16)) minor=$((number >> 8 & 255))
# shellcheck disable=SC2046 # one name
capture rpm -qp --requires $(rpm_of slurm-ddp-plugin)
prints "^slurm >= $(release_of "$major $minor")$" "the plugin asks for the release of Slurm it was built for"
prints "^slurm < $(release_of "$major $((minor + 1))")$" "and for no later one"
prints_not 'jansson|libucp|libcrypto|libddp' "the plugin needs no library beyond libc"
# shellcheck disable=SC2046
capture rpm -qp --configfiles $(rpm_of slurm-ddp-plugin)
prints '^/etc/slurm/plugstack.conf.d/spank_ddp.conf$' "spank_ddp.conf is a configuration file: upgrades keep the site's"
# shellcheck disable=SC2046
capture rpm -qpl $(rpm_of slurm-ddp-plugin) $(rpm_of libddp) $(rpm_of libddp-devel) $(rpm_of slurm-ddp-doc) $(rpm_of slurm-ddp-tools)
for file in 'slurm/spank_ddp\.so' 'slurm-ddp/libnccl-profiler-ddp\.so' 'slurm-ddp/libnccl-net-ddpucx\.so' 'libddp\.so\.1' 'include/ddp\.h' 'pkgconfig/libddp\.pc' 'man8/spank_ddp\.8' \
	'man7/srun-ddp\.7' 'man3/libddp\.3' 'slurm-ddp/admin-guide\.md' 'slurm-ddp/api\.html' 'slurm-ddp/batch/pytorch\.sh'; do
	prints "/$file" "they hold ${file//\\/}"
done

# Without Slurm's headers there would be nothing to tie the plugin to.
mkdir -p "$work/top/SOURCES" "$work/tree/slurm-ddp-0.2.0"
tar -C "$work/tree" -czf "$work/top/SOURCES/slurm-ddp-0.2.0.tar.gz" slurm-ddp-0.2.0
capture rpmbuild --nodeps --define "_topdir $work/top" --define 'slurm_includedir /nowhere' -bp "$spec"
status_is_not 0 "no headers of Slurm are an error"
prints 'no release of Slurm in /nowhere/slurm/slurm_version.h' "which names the file"

if command -v rpmlint >/dev/null && [[ $(rpmlint --version 2>&1) == 2.* ]]; then
	rm -f "$packages"/*-debug*.rpm
	capture rpmlint --rpmlintrc "${spec%.spec}.rpmlintrc" "$spec" "$packages"/*.rpm
	prints 'packages and 1 specfiles checked' "rpmlint looks at spec and packages"
	# Versions of rpmlint differ in what they say, and so in the filters they use.
	prints_not '^[^ ]+: [EW]: ([^u]|u[^n]|un[^u])' "and finds nothing"
else
	skip "rpmlint" "there is no rpmlint 2"
fi
done_testing
