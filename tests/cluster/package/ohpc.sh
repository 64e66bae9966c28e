# SPDX-License-Identifier: Apache-2.0
# OpenHPC's packages: built whole, installed into a root by what they ask for and give, and run from where they lie; for
# package-rpm.sh.
# shellcheck shell=bash disable=SC2154,SC2034

ohpc=$work/ohpc ohpc_root=$work/ohpc-root place=/opt/ohpc/pub/libs/slurm-ddp
# shellcheck disable=SC2086 # an option or none
capture env HOME="$work" CFLAGS='-g1 -O0' "$source/slurm/packaging/build-rpm" --ohpc --output "$ohpc" $nodeps "${with_torch[@]}"
status_is 0 "OpenHPC's: rpmbuild builds the packages"
[ "$status" = 0 ] || { done_testing; exit 1; }
rm -f "$ohpc"/*-debug*.rpm
same "libddp-devel-ohpc libddp-ohpc python3-slurm-ddp-ohpc ${torch_name:+python3-slurm-ddp-torch-ohpc }slurm-ddp-doc-ohpc slurm-ddp-plugin-ohpc slurm-ddp-tools-ohpc " \
	"$(rpm -qp --qf '%{NAME}\n' "$ohpc"/*.rpm | sort | tr '\n' ' ')" "OpenHPC's: all packages end in -ohpc"

# rpmlint says nothing of the packages that the spec's filters do not explain
if command -v rpmlint >/dev/null && [[ $(rpmlint --version 2>&1) == 2.* ]]; then
	capture rpmlint --rpmlintrc "${spec%.spec}.rpmlintrc" "$ohpc"/*.rpm
	prints 'packages and 0 specfiles checked' "OpenHPC's: rpmlint looks at the packages"
	prints_not '^[^ ]+: [EW]: ([^u]|u[^n]|un[^u])' "OpenHPC's: and finds nothing"
else
	skip "OpenHPC's: rpmlint" "there is no rpmlint 2"
fi

# What none of these packages gives comes from others, for which one package stands in. Of OpenHPC's own there are two.
others() { comm -23 <(rpm -qp --requires "$ohpc"/*.rpm | sort -u) <(rpm -qp --provides "$ohpc"/*.rpm | sort -u); }
asked=$(others | grep -v '^rpmlib(')
output=$asked
prints '^ohpc-filesystem$' "OpenHPC's: they ask for its folders"
prints_not 'libddp|slurm-ddp' "OpenHPC's: what they ask of one another is there"
printf '%s\n' 'Name: others' 'Version: 1' 'Release: 1' 'Summary: stand-in' 'License: none' 'BuildArch: noarch' 'AutoReqProv: no' \
	"$(sed -E "s/ (<|<=|>=|=) .*//; s/^/Provides: /; /^Provides: slurm/s/$/ = $(release_of "$major $minor")/; /^Provides: python3?$/s/$/ = 3.11/" <<<"$asked" | sort -u)" \
	'%description' 'stand-in' '%files' >"$work/top/SPECS/others.spec"
check "OpenHPC's: a stand-in for the other packages is made" rpmbuild --quiet --define "_topdir $work/top" -bb "$work/top/SPECS/others.spec"
mkdir "$ohpc_root" && rpm --root "$ohpc_root" --initdb
ohpc_options=(--root "$ohpc_root" --noscripts)
if command -v dpkg >/dev/null; then ohpc_options+=(--force-debian); fi
check "OpenHPC's: all packages install, with their dependencies" rpm "${ohpc_options[@]}" --install "$work/top/RPMS"/noarch/others-*.rpm "$ohpc"/*.rpm
capture rpm --root "$ohpc_root" --verify --nodeps --noscripts --all
prints_not '^missing|^..5' "OpenHPC's: each file is there, as it was packed"

# in_place COMMAND...: where /opt/ohpc is the root's
in_place()
{
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare --mount sh -c 'mount -t tmpfs none /opt && mkdir /opt/ohpc && mount --bind "$1/opt/ohpc" /opt/ohpc && shift && exec "$@"' \
		in_place "$ohpc_root" "$@"
}
module=$(find "$ohpc_root/opt/ohpc/pub/modulefiles/slurm-ddp" -type f)
mapfile -t variables < <(sed -n 's/^prepend-path \([A-Z_]*\) "\(.*\)"$/\1=\2/p' "$module")
output=$(for variable in "${variables[@]}"; do [ -d "$ohpc_root${variable#*=}" ] || echo "no folder: $variable"; done)
same "6 " "${#variables[@]} $output" "OpenHPC's: each folder that the module names is there"
for program in ddp-status ddp-report ddp-failures ddp-preflight; do
	capture in_place "$place/bin/$program" --version
	prints "^$program [0-9]+\.[0-9]+" "OpenHPC's: $program runs, without the module"
done
unit=$place/share/doc/slurm-ddp/monitoring/slurm-ddp-status.service
capture in_place sh -c "test -x \"\$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' $unit)\""
status_is 0 "OpenHPC's: systemd's unit names a program that is there"
printf '%s\n' '#include <stdio.h>' '#include <ddp.h>' 'int main(void) { return printf("%s\n", ddp_version()) < 0; }' >"$work/version.c"
# shellcheck disable=SC2016 # the inner shell expands it
capture in_place env "${variables[@]/%/:}" PATH="$place/bin:$PATH" sh -c 'cc "$1/version.c" -o "$1/version" $(pkg-config --cflags --libs libddp) && "$1/version"' _ "$work"
status_is 0 "OpenHPC's: with the module a program is built and runs"
capture in_place env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$place/lib/slurm-ddp/python" python3 -c 'import slurm_ddp; print(slurm_ddp.__file__)'
prints "^$place/" "OpenHPC's: slurm_ddp beside the plugin is imported"
capture grep -c "$place/lib/slurm-ddp" "$ohpc_root"/usr/lib*/slurm/spank_ddp.so
status_is 0 "OpenHPC's: the plugin looks for its other files there"

# shellcheck disable=SC2046 # several names
check "OpenHPC's: all packages are erased" rpm --root "$ohpc_root" --noscripts --erase $(rpm -qp --qf '%{NAME} ' "$ohpc"/*.rpm)
same '' "$(find "$ohpc_root" -name '*ddp*')" "OpenHPC's: and leave nothing"
