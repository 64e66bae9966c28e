#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 900
# all: cluster
# The RPM packages: built from this tree, tied to Slurm's release, and clean by
# rpmlint; installed and upgraded in a root with a database of this test's own, since the
# machines of this test have no RPM database.
. "$source/tests/cluster/lib.sh"

command -v rpmbuild >/dev/null || skip_all "rpmbuild is missing (rpm, rpm-build)"
header=/usr/include/slurm/slurm_version.h
[ -e "$header" ] || skip_all "Slurm's headers are missing (libslurm-dev, slurm-devel)"

packages=$work/packages
spec=$source/slurm/packaging/rpm/slurm-ddp.spec
nodeps=
if command -v dpkg >/dev/null; then nodeps=--nodeps; fi

# package.sh compiles the c10d backend in the same way, so that once is enough, except where RPM_TORCH=yes asks for it.
with_torch=() torch_name=''
if [ "${RPM_TORCH-}" = yes ]; then with_torch=(--with-torch) torch_name='python3-slurm-ddp-torch '; fi
# Neither optimized nor packed well: what is tested is what the packages hold.
printf '%s\n' '%_binary_payload w1.gzdio' >"$work/.rpmmacros"
capture env HOME="$work" CFLAGS='-g1 -O0' "$source/slurm/packaging/build-rpm" --output "$packages" $nodeps "${with_torch[@]}"
status_is 0 "rpmbuild builds the packages"
[ "$status" = 0 ] || { done_testing; exit 1; }
same "libddp libddp-devel python3-slurm-ddp ${torch_name}slurm-ddp-doc slurm-ddp-plugin slurm-ddp-tools " \
	"$(rpm -qp --qf '%{NAME}\n' "$packages"/*.rpm | grep -v debug | sort | tr '\n' ' ')" \
	"plugin, tools, library, -devel, Python and doc are packages of their own"

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
if [ -n "$torch_name" ]; then
	# shellcheck disable=SC2046
	capture rpm -qp --requires -l $(rpm_of python3-slurm-ddp-torch)
	prints '^libddp\.so\.1' "the backend asks for libddp"
	prints '/site-packages/slurm_ddp_torch/_C\..*\.so$' "and holds what is compiled"
fi
if /usr/bin/python3 -c 'import torch' 2>/dev/null && command -v rpmspec >/dev/null; then
	capture rpmspec --with torch -q --requires "$spec"
	prints '^python\(abi\) = 3\.[0-9]+$' "--with-torch: the backend asks for the Python it was built for"
	prints '^python3-torch >= [0-9]+\.[0-9]+$' "--with-torch: and for the PyTorch"
else
	skip "--with-torch" "there is no rpmspec, or no torch (python3-torch)"
fi
# shellcheck disable=SC2046
capture rpm -qpl $(rpm_of slurm-ddp-plugin) $(rpm_of libddp) $(rpm_of libddp-devel) $(rpm_of slurm-ddp-doc) $(rpm_of slurm-ddp-tools) $(rpm_of python3-slurm-ddp)
for file in 'slurm/spank_ddp\.so' 'slurm-ddp/libnccl-profiler-ddp\.so' 'slurm-ddp/libnccl-net-ddpucx\.so' 'libddp\.so\.1' 'include/ddp\.h' 'pkgconfig/libddp\.pc' 'slurm-ddp/python/site/sitecustomize\.py' 'site-packages/slurm_ddp/page\.py' \
	'man8/spank_ddp\.8' \
	'man7/srun-ddp\.7' 'man3/libddp\.3' 'slurm-ddp/admin-guide\.md' 'slurm-ddp/spank_ddp\.conf' 'slurm-ddp/api\.html' 'slurm-ddp/batch/pytorch\.sh'; do
	prints "/$file" "they hold ${file//\\/}"
done

# ---- installed and upgraded ----------------------------------------------------------

root=$work/root
conf=$root/etc/slurm/plugstack.conf.d/spank_ddp.conf
rpm_options=(--root "$root" --nodeps --noscripts)
# Debian's rpm refuses to install anything otherwise.
if command -v dpkg >/dev/null; then rpm_options+=(--force-debian); fi

# stand_in NAME FILE ATTRIBUTE: a package of version 0.1 that has this file
stand_in()
{
	mkdir -p "$work/top/SPECS" &&
		printf '%s\n' "Name: $1" 'Version: 0.1' 'Release: 1' 'Summary: stand-in' 'License: none' \
			'%description' 'stand-in' '%install' "mkdir -p %{buildroot}${2%/*}" \
			"printf '%%s\n' '# A sample' '#optional spank_ddp.so' >%{buildroot}$2" '%files' "${3:-} $2" \
			>"$work/top/SPECS/$1.spec" &&
		rpmbuild --quiet --define "_topdir $work/top" --define '_build_id_links none' -bb "$work/top/SPECS/$1.spec" >/dev/null
}
stand_in man-pages /usr/share/man/man7/ddp.7
stand_in slurm-ddp-plugin /etc/slurm/plugstack.conf.d/spank_ddp.conf '%config(noreplace)'
mkdir "$root" && rpm --root "$root" --initdb
packaged=("$packages"/*.rpm)
check "all packages install together, beside man-pages" rpm "${rpm_options[@]}" --install \
	"$work/top/RPMS"/*/man-pages-*.rpm "${packaged[@]}"
same 'no file' "$([ -e "$conf" ] || echo 'no file')" "the plugin is installed disabled"
echo 'optional spank_ddp.so gpu=error' >"$conf"
# shellcheck disable=SC2046
check "a further release installs" rpm "${rpm_options[@]}" --upgrade --force $(rpm_of slurm-ddp-plugin)
same 'optional spank_ddp.so gpu=error' "$(cat "$conf")" "and the site's line is as it was"
# What runs before the plugin is erased: with $1 = 0 for the last one, 1 for an upgrade. The root has no shell of its own.
# shellcheck disable=SC2046
rpm -qp --qf '%{PREUN}' $(rpm_of slurm-ddp-plugin) | sed "s|/etc/slurm|$root/etc/slurm|g" >"$work/preun"
echo 'optional spank_ddp.so' >"$root/etc/slurm/plugstack.conf"
capture sh -e "$work/preun" 1
same ' optional spank_ddp.so gpu=error' "$output $(cat "$conf")" "at an upgrade, the site's line stays where it is"
capture sh -e "$work/preun" 0
prints 'spank_ddp\.conf is saved as .*/spank_ddp\.conf\.rpmsave' "before a removal, it is moved away"
prints 'warning: .*/plugstack\.conf still names spank_ddp\.so' "and a line elsewhere is named"
same 'optional spank_ddp.so gpu=error' "$([ -e "$conf" ] || cat "$conf.rpmsave")" "so that Slurm reads no line without a plugin"
rm -f "$root/etc/slurm/plugstack.conf"
rpm --root "$root" --nodeps --noscripts --erase slurm-ddp-plugin && rm -f "$conf"*
rpm "${rpm_options[@]}" --install "$work/top/RPMS"/*/slurm-ddp-plugin-0.1-*.rpm
sed -i 's/^#optional.*/optional spank_ddp.so omp=1/' "$conf"
# shellcheck disable=SC2046
check "from a release whose configuration file was edited" rpm "${rpm_options[@]}" --upgrade $(rpm_of slurm-ddp-plugin)
same 'optional spank_ddp.so omp=1' "$(grep -v '^#' "$conf")" "the edited line stays where it is"

# Without Slurm's headers there would be nothing to tie the plugin to.
mkdir -p "$work/top/SOURCES" "$work/tree/slurm-ddp-0.3.0"
tar -C "$work/tree" -czf "$work/top/SOURCES/slurm-ddp-0.3.0.tar.gz" slurm-ddp-0.3.0
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

# Another build, of another minute: make check-packages asks for it.
if [ "${RPM_OHPC-}" = yes ]; then . "$source/tests/cluster/package/ohpc.sh"; fi
done_testing
