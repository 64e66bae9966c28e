#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# Whose Slurm the packages are for: the distribution's, SchedMD's or OpenHPC's, by
# stand-ins for the packages of headers, in package databases of this test's own.
. "$source/tests/cluster/lib.sh"

rules=$source/slurm/packaging/debian/rules
spec=$source/slurm/packaging/rpm/slurm-ddp.spec

# ---- Debian's way ------------------------------------------------------------------

# debian_with PACKAGE VERSION: what debian/rules says where that is installed
debian_with()
{
	local root=$work/$1
	mkdir -p "$root/package/DEBIAN" "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/triggers" &&
		: >"$root/var/lib/dpkg/status" &&
		printf '%s\n' "Package: $1" "Version: $2" 'Architecture: all' 'Maintainer: nobody' 'Description: stand-in' \
			>"$root/package/DEBIAN/control" &&
		dpkg-deb --build "$root/package" "$root/package.deb" >/dev/null &&
		dpkg --root="$root" --log=/dev/null --install "$root/package.deb" >/dev/null &&
		DPKG_ADMINDIR=$root/var/lib/dpkg make -s -f "$rules" print-slurm
}

if command -v dpkg-deb >/dev/null && [ -e /usr/share/dpkg/architecture.mk ]; then
	folder=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
	capture debian_with libslurm-dev 24.11.5-4
	same "$folder/slurm-wlm"$'\n''slurm-wlm-basic-plugins (>= 24.11), slurm-wlm-basic-plugins (<< 24.12~)' "$output" \
		"with Debian's Slurm the plugin goes to slurm-wlm, and asks for that"
	capture debian_with slurm-smd-dev 25.05.3-1
	same "$folder/slurm"$'\n''slurm-smd (>= 25.05), slurm-smd (<< 25.06~)' "$output" \
		"with SchedMD's it goes to slurm, and asks for slurm-smd"
else
	skip "Debian packages" "dpkg-dev is missing"
fi

# ---- RPM's way ---------------------------------------------------------------------

# rpm_with PACKAGE: what the built plugin would ask for where the headers are that package's
rpm_with()
{
	local top=$work/rpm-$1 include=$work/rpm-$1/include force=()
	# Debian's rpm refuses to install anything otherwise.
	if command -v dpkg >/dev/null; then force=(--force-debian); fi
	mkdir -p "$top/SPECS" "$include/slurm" || return 1
	echo '#define SLURM_VERSION_NUMBER 0x190b01' >"$include/slurm/slurm_version.h"
	printf '%s\n' "Name: $1" 'Version: 25.11.1' 'Release: 1' 'Summary: stand-in' 'License: none' 'BuildArch: noarch' \
		'%description' 'stand-in' '%install' "mkdir -p %{buildroot}$include/slurm" \
		"cp $include/slurm/slurm_version.h %{buildroot}$include/slurm" '%files' "$include/slurm/slurm_version.h" \
		>"$top/SPECS/stand-in.spec"
	rpmbuild --quiet --define "_topdir $top" -bb "$top/SPECS/stand-in.spec" >/dev/null &&
		rpm --dbpath "$top/db" --initdb &&
		rpm --dbpath "$top/db" "${force[@]}" --install --justdb --nodeps "$top/RPMS/noarch/$1"-*.rpm &&
		rpmspec --define "_dbpath $top/db" --define "slurm_includedir $include" -q --requires "$spec" | grep -w '^slurm'
}

if command -v rpmbuild >/dev/null && command -v rpmspec >/dev/null; then
	capture rpm_with slurm-devel
	same $'slurm >= 25.11\nslurm < 25.12' "$output" "with slurm-devel, a distribution's or SchedMD's, the plugin asks for slurm"
	capture rpm_with slurm-devel-ohpc
	same $'slurm-ohpc >= 25.11\nslurm-ohpc < 25.12' "$output" "with OpenHPC's it asks for slurm-ohpc"
	capture rpmspec --define 'ohpc 1' -q --qf '%{NAME}\n' "$spec"
	same "libddp-devel-ohpc libddp-ohpc python3-slurm-ddp-ohpc slurm-ddp-doc-ohpc slurm-ddp-ohpc slurm-ddp-plugin-ohpc slurm-ddp-tools-ohpc " \
		"$(grep -v debug <<<"$output" | sort | tr '\n' ' ')" "OpenHPC's names: all packages end in -ohpc"
	# What rpm says of the spec itself, not of what is built.
	capture rpmspec --define 'ohpc 1' -P "$spec"
	prints '^/opt/ohpc/pub/modulefiles/slurm-ddp/[0-9.]+$' "and the module lies where OpenHPC's modules lie"
	prints '^/opt/ohpc/pub/libs/slurm-ddp/lib/libddp\.so' "and the library below /opt/ohpc/pub"
	prints '^/usr/lib(64)?/slurm/spank_ddp\.so$' "but the plugin where Slurm looks"
	prints '^Requires: *libddp-ohpc.* = ' "libddp-devel-ohpc asks for libddp-ohpc"
	capture rpmspec --define 'slurm_includedir /nowhere' -q --buildrequires "$spec"
	prints '^/nowhere/slurm/slurm_version.h$' "the header itself is needed for a build, whichever package has it"
else
	skip "RPM packages" "rpmbuild or rpmspec is missing"
fi
done_testing
