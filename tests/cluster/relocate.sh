#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 60
# What make install DESTDIR=... wrote goes to another folder, as a site's image or an unpacked archive has it.
. "$source/tests/cluster/lib.sh"

moved=$work/moved configured=$(sed -n 's/^prefix = //p' "$build/Makefile")
cp -a "$prefix" "$moved"
export LD_LIBRARY_PATH=$moved/lib PKG_CONFIG_PATH=$moved/lib/pkgconfig
for program in ddp-status ddp-report ddp-preflight ddp-failures; do
	capture "$moved/bin/$program" --version
	status_is 0 "$program runs in another folder"
	prints "^$program [0-9]+\.[0-9]+" "and says its version"
done
# Without the commit, which tells builds of a release apart.
release=${output#* }
release=${release%%+*}
for package in "easybuild/slurm-ddp-$release.eb" spack/package.py; do
	capture grep -E '^ *version( = |\()' "$source/slurm/packaging/$package"
	prints "[\"']${release//./\\.}[\"']" "$package is for this release"
done
# Of NCCL's network, Python and wheels the packages' own build has more than this one. tests/run --all makes the packages.
output=$(cat "$source"/slurm/packaging/debian/*.install | grep -E '^usr/(bin|include|lib/\*|share)/' | grep -vE 'nccl-net|/wheels$|^usr/lib/[*]/slurm[*]/' |
	sed 's|^usr/lib/[*]/|usr/lib/|; s|^usr/||' | while read -r file; do compgen -G "$moved/$file" >/dev/null || echo "$file"; done)
same '' "$output" "what the Debian packages hold is installed"
capture sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$moved/share/doc/slurm-ddp/monitoring/slurm-ddp-status.service"
same "$configured/bin/ddp-status" "$output" "systemd's unit names ddp-status where it was to be installed"
capture sh -c 'grep -rIlF -e "$1" -e "$2" "$3"' _ "${prefix%/usr/local}" "$build" "$moved"
same '' "$output" "no file names the folder of DESTDIR or of the build"
output=$(find "$moved" -type f \( -name '*.so*' -o -path '*/bin/ddp-*' \) -exec sh -c 'readelf -d "$1" 2>/dev/null | grep -E "R(UN)?PATH" | grep -vF "[$2/lib]"' _ {} "$configured" \;)
same '' "$output" "neither library nor tool looks for libraries in the build"
if ! command -v pkg-config >/dev/null || ! command -v "${CC:-cc}" >/dev/null; then
	skip "a program is built against the moved folder" "there is no pkg-config or no compiler"
else
	printf '%s\n' '#include <stdio.h>' '#include <ddp.h>' 'int main(void) { return printf("%s\n", ddp_version()) < 0; }' >"$work/version.c"
	read -r -a flags < <(pkg-config --define-prefix --cflags --libs libddp)
	capture "${CC:-cc}" "$work/version.c" -o "$work/version" "${flags[@]}"
	status_is 0 "a program is built against the moved folder"
	capture "$work/version"
	status_is 0 "and runs"
fi
capture env -u LD_LIBRARY_PATH PYTHONPATH="$moved/lib/slurm-ddp/python" python3 -c 'import slurm_ddp; print(slurm_ddp.__file__)'
prints "^$moved/" "slurm_ddp is imported from there"
done_testing
