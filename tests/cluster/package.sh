#!/bin/bash
# nodes: 0
# seconds: 900
# The Debian packages: built from this tree, unpacked, and tried on a cluster
# whose plugin, library and header come from nowhere else.
. "$source/tests/cluster/lib.sh"

command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null ||
	skip_all "dpkg-buildpackage or dh is missing (dpkg-dev, debhelper)"
dpkg-query -W libslurm-dev >/dev/null 2>&1 || skip_all "libslurm-dev is not installed"

packages=$work/packages
root=$work/root
tool=$source/slurm/cluster
own=/run/slurm-ddp/package-$$
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
trap '"$tool" stop --dir $own >/dev/null 2>&1' EXIT

# ---- the packages ----------------------------------------------------------------

# Not optimized: what is tested is what the packages hold.
capture env DEB_BUILD_OPTIONS=noopt "$source/slurm/packaging/build-deb" --output "$packages"
status_is 0 "dpkg-buildpackage builds the packages"
[ "$status" = 0 ] || { done_testing; exit 1; }
same 'libddp-dev libddp1 slurm-ddp-doc slurm-ddp-plugin slurm-ddp-tools ' \
	"$(for file in "$packages"/*.deb; do basename "$file" | sed 's/_.*//'; done | grep -v dbgsym | sort | tr '\n' ' ')" \
	"plugin, tools, library, -dev and doc are packages of their own"

deb() { echo "$packages/$1"_*.deb; }
field() { dpkg-deb -f "$(deb "$1")" "$2"; }

release=$(dpkg-query -W -f '${source:Upstream-Version}' libslurm-dev | cut -d. -f1,2)
output=$(field slurm-ddp-plugin Depends)
prints "slurm-wlm-basic-plugins \(>= $release\)" "the plugin asks for the release of Slurm it was built for"
prints 'slurm-wlm-basic-plugins \(<< [0-9.]+~\)' "and for no later one"
prints_not 'libddp|libjansson|libucp|libssl' "the plugin needs no library beyond libc"
output=$(field libddp-dev Depends)
prints "libddp1 \(= " "libddp-dev asks for the library of its own version"
if command -v apt-get >/dev/null && apt-get check >/dev/null 2>&1; then
	check "apt could install them here" apt-get --simulate --no-download install "$packages"/lib*.deb "$packages"/slurm*.deb
else
	skip "apt could install them here" "apt is not usable"
fi
if command -v lintian >/dev/null; then
	capture lintian --allow-root --fail-on error --tag-display-limit 0 "$packages"/*.deb
	status_is 0 "lintian finds no error"
else
	skip "lintian finds no error" "lintian is not installed"
fi

mkdir -p "$root"
for package in slurm-ddp-plugin slurm-ddp-tools libddp1 libddp-dev slurm-ddp-doc; do
	dpkg-deb -x "$(deb $package)" "$root"
done
library=$root/usr/lib/$triplet
for file in "usr/lib/$triplet/slurm-wlm/spank_ddp.so" "usr/lib/$triplet/slurm-ddp/libnccl-profiler-ddp.so" "usr/lib/$triplet/slurm-ddp/libnccl-net-ddpucx.so" etc/slurm/plugstack.conf.d/spank_ddp.conf \
	usr/bin/ddp-status usr/bin/ddp-report usr/include/ddp.h "usr/lib/$triplet/pkgconfig/libddp.pc" \
	usr/include/ddp/kernels.h usr/include/ddp/table.h "usr/lib/$triplet/libddpkernels.a" "usr/lib/$triplet/pkgconfig/libddpkernels.pc" usr/share/man/man3/libddp.3.gz \
	usr/share/man/man7/srun-ddp.7.gz usr/share/man/man8/spank_ddp.8.gz \
	usr/share/doc/slurm-ddp/admin-guide.md usr/share/doc/slurm-ddp/api.html usr/share/doc/slurm-ddp/batch/pytorch.sh; do
	if [ -s "$root/$file" ]; then ok "there is /$file"; else not_ok "there is /$file"; fi
done
output=$(find "$root" -type f -name '*.so*' -exec sh -c 'readelf -d "$1" | grep -E "R(UN)?PATH"' _ {} \;)
same '' "$output" "no library looks for others in a build folder"
output=$(dpkg-deb -f "$(deb slurm-ddp-plugin)" Conffiles; dpkg-deb --ctrl-tarfile "$(deb slurm-ddp-plugin)" | tar -xO ./conffiles)
prints '^/etc/slurm/plugstack.conf.d/spank_ddp.conf$' "spank_ddp.conf is a configuration file: upgrades keep the site's"

# ---- as a site would use them ----------------------------------------------------

conf=$root/etc/slurm/plugstack.conf.d/spank_ddp.conf
same '' "$(grep -vE '^[[:space:]]*(#|$)' "$conf")" "the plugin is installed disabled"
# What the administrator's guide says: take the # from the line.
line=$(sed -n 's/^# *\(optional  *spank_ddp\.so.*\)/\1/p' "$conf" | tail -n 1)
output=$line
prints '^optional +spank_ddp\.so' "enabled by taking one # away"
read -r -a words <<<"$line"
check "a cluster starts with the packaged plugin" "$tool" start --dir $own --nodes 2 --for $$ \
	--plugin "$library/slurm-wlm/spank_ddp.so" --plugin-args "${words[*]:2}"
cluster=$own
capture as_user srun --help
prints '--ddp' "srun knows --ddp"
# shellcheck disable=SC2016 # the tasks expand these
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'echo "rank $RANK of $WORLD_SIZE on $(hostname) with $MASTER_ADDR:$MASTER_PORT"'
status_is 0 "srun --ddp runs"
prints_times 4 'rank [0-3] of 4 on n[01] with n0:[0-9]+$' "each task knows its rank and the master"
same 4 "$(sort -u <<<"$output" | wc -l)" "no two have the same"

# ---- as a user would ----------------------------------------------------------------

awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" >"$work/train.c"
cd "$work" || exit 1
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$library/pkgconfig
# shellcheck disable=SC2046 # flags are words
check "a program compiles with libddp-dev" cc -O2 train.c $(pkg-config --cflags --libs libddp) -o train
chmod 755 train
capture as_user env LD_LIBRARY_PATH="$library" srun --ddp -N2 --ntasks-per-node=2 "$work/train"
status_is 0 "it runs on the cluster with libddp1"
prints '^4 ranks: .*y = 3\.00 a -2\.00 b \+1\.00$' "and its ranks train together"
done_testing
