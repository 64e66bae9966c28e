#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 900
# all: cluster
# The Debian packages: built from this tree, installed and upgraded by dpkg in a root of
# their own, and tried on a cluster whose plugin, library and header come from nowhere else;
# upgraded and removed there, too, while jobs run (package/running.sh).
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

with_torch=() torch='' torch_name=''
if dpkg-query -W python3-torch libtorch-dev pybind11-dev python3-dev python3-setuptools g++ >/dev/null 2>&1; then
	with_torch=(--with-torch) torch=python3-slurm-ddp-torch torch_name='python3-slurm-ddp-torch '
fi
# Neither optimized, nor with what debuggers want, nor packed well: what is tested is what the packages hold.
capture env DEB_BUILD_OPTIONS='noopt noautodbgsym' DEB_CFLAGS_APPEND=-g0 DEB_CXXFLAGS_APPEND=-g0 DPKG_DEB_COMPRESSOR_LEVEL=1 \
	"$source/slurm/packaging/build-deb" --output "$packages" "${with_torch[@]}"
status_is 0 "dpkg-buildpackage builds the packages"
[ "$status" = 0 ] || { done_testing; exit 1; }
same "libddp-dev libddp1 python3-slurm-ddp ${torch_name}slurm-ddp-doc slurm-ddp-plugin slurm-ddp-tools " \
	"$(for file in "$packages"/*.deb; do basename "$file" | sed 's/_.*//'; done | grep -v dbgsym | sort | tr '\n' ' ')" \
	"plugin, tools, library, -dev, Python and doc are packages of their own"

deb() { echo "$packages/$1"_*.deb; }
field() { dpkg-deb -f "$(deb "$1")" "$2"; }

release=$(dpkg-query -W -f '${source:Upstream-Version}' libslurm-dev | cut -d. -f1,2)
output=$(field slurm-ddp-plugin Depends)
prints "slurm-wlm-basic-plugins \(>= $release\)" "the plugin asks for the release of Slurm it was built for"
prints 'slurm-wlm-basic-plugins \(<< [0-9.]+~\)' "and for no later one"
prints_not 'libddp|libjansson|libucp|libssl' "the plugin needs no library beyond libc"
same "$(sed 1d "$source/slurm/packaging/debian/libddp1.symbols" | sort)" \
	"$(dpkg-deb -I "$(deb libddp1)" symbols | sed 1d | sort)" "libddp1 says since when it has each symbol"
output=$(field libddp-dev Depends)
prints "libddp1 \(= " "libddp-dev asks for the library of its own version"
if [ -n "$torch" ]; then
	output=$(field "$torch" Depends)
	prints '(^|, )libddp1 .*libtorch[0-9.]+ ' "the backend asks for libddp, and for the PyTorch it was built for"
	prints 'python3 \(>= 3\.[0-9]+~\), python3 \(<< 3\.[0-9]+~\)' "and for the Python"
fi
if command -v apt-get >/dev/null && apt-get check >/dev/null 2>&1; then
	check "apt could install them here" apt-get --simulate --no-download install "$packages"/*.deb
else
	skip "apt could install them here" "apt is not usable"
fi
if command -v lintian >/dev/null; then
	capture lintian --allow-root --fail-on error --tag-display-limit 0 "$packages"/*.deb
	status_is 0 "lintian finds no error"
else
	skip "lintian finds no error" "lintian is not installed"
fi

# ---- installed by dpkg -------------------------------------------------------------

# dpkg_there OPTION...: without a terminal, in a root and with a list of packages of this
# test's own. The list begins as this machine's, so that dpkg knows the files of its packages.
mkdir -p "$root" && cp -a /var/lib/dpkg "$work/dpkg" && rm -f "$work"/dpkg/lock*
dpkg_there()
{
	DEBIAN_FRONTEND=noninteractive dpkg --admindir="$work/dpkg" --instdir="$root" --log=/dev/null \
		--no-triggers --force-script-chrootless --force-unsafe-io --path-include='*' "$@" </dev/null
}

# stand_in NAME FILE: a package that has this file
stand_in()
{
	local folder=$work/$1-package
	mkdir -p "$folder/DEBIAN" "$folder/${2%/*}" && echo "of $1" >"$folder/$2" &&
		printf '%s\n' "Package: $1" 'Version: 1' 'Architecture: all' 'Maintainer: nobody' 'Description: stand-in' \
			>"$folder/DEBIAN/control" &&
		dpkg-deb --build "$folder" "$work/$1.deb" >/dev/null
}

# manpages has AppleTalk's ddp(7).
if ! grep -qs '/man7/ddp\.7' "$work/dpkg/info/manpages.list"; then
	stand_in manpages usr/share/man/man7/ddp.7.gz
	check "there is a package manpages" dpkg_there --install "$work/manpages.deb"
fi
stand_in other usr/share/man/man7/ddp.7.gz
capture dpkg_there --install "$work/other.deb"
prints "trying to overwrite '/usr/share/man/man7/ddp.7.gz', which is also in package manpages" \
	"a file of two packages would be noticed"
debs=()
for package in slurm-ddp-plugin slurm-ddp-tools libddp1 libddp-dev python3-slurm-ddp $torch slurm-ddp-doc; do debs+=("$(deb "$package")"); done
check "all packages install, beside manpages and the other packages of this machine" dpkg_there --install "${debs[@]}"
library=$root/usr/lib/$triplet
for file in "usr/lib/$triplet/slurm-wlm/spank_ddp.so" "usr/lib/$triplet/slurm-ddp/libnccl-profiler-ddp.so" "usr/lib/$triplet/slurm-ddp/libnccl-net-ddpucx.so" \
	usr/bin/ddp-status usr/bin/ddp-report usr/bin/ddp-preflight usr/bin/ddp-failures usr/include/ddp.h "usr/lib/$triplet/pkgconfig/libddp.pc" \
	usr/include/ddp/kernels.h usr/include/ddp/table.h "usr/lib/$triplet/libddpkernels.a" "usr/lib/$triplet/pkgconfig/libddpkernels.pc" usr/share/man/man3/libddp.3.gz \
	usr/share/man/man7/srun-ddp.7.gz usr/share/man/man8/spank_ddp.8.gz \
	"usr/lib/$triplet/slurm-ddp/python/site/sitecustomize.py" "usr/lib/$triplet/slurm-ddp/python/slurm_ddp/page.py" \
	usr/lib/python3/dist-packages/slurm_ddp/page.py usr/lib/python3/dist-packages/slurm_ddp.pth \
	usr/share/doc/slurm-ddp/admin-guide.md usr/share/doc/slurm-ddp/spank_ddp.conf usr/share/doc/slurm-ddp/api.html usr/share/doc/slurm-ddp/batch/pytorch.sh; do
	if [ -s "$root/$file" ]; then ok "there is /$file"; else not_ok "there is /$file"; fi
done
output=$(find "$root" -type f -name '*.so*' -exec sh -c 'readelf -d "$1" | grep -E "R(UN)?PATH"' _ {} \;)
same '' "$output" "no library looks for others in a build folder"
output=$(dpkg-query --admindir="$work/dpkg" -W -f '${Conffiles}' slurm-ddp-plugin)
same '' "$output" "no package has a configuration file: dpkg never asks about one"

# ---- as a site would use them ----------------------------------------------------

same '' "$(ls "$root/etc/slurm/plugstack.conf.d")" "the plugin is installed disabled"
# What the administrator's guide says.
enable=$(sed -n "s|^ *\(echo 'optional spank_ddp.so.*>\) */etc/|\1 $root/etc/|p" "$source/doc/admin-guide.md" | head -n 1)
conf=$root/etc/slurm/plugstack.conf.d/spank_ddp.conf
check "the guide's command enables it" sh -c "$enable"
output=$(cat "$conf")
prints '^optional +spank_ddp\.so' "by a line in a file of the site's own"
mkdir "$work/plugins" && ln -s "$library/slurm-wlm/spank_ddp.so" "$work/plugins"
check "a cluster starts with Slurm's plugins and the packaged one" "$tool" start --dir $own --nodes 2 --for $$ --no-plugin \
	--conf "PluginDir=/usr/lib/$triplet/slurm-wlm:$work/plugins"
cluster=$own
echo "include $root/etc/slurm/plugstack.conf.d/*.conf" >"$cluster/plugstack.conf"
capture as_user srun --help
prints '--ddp' "srun knows --ddp"
# shellcheck disable=SC2016 # the tasks expand these
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'echo "rank $RANK of $WORLD_SIZE on $(hostname) with $MASTER_ADDR:$MASTER_PORT"'
status_is 0 "srun --ddp runs"
prints_times 4 'rank [0-3] of 4 on n[01] with n0:[0-9]+$' "each task knows its rank and the master"
same 4 "$(sort -u <<<"$output" | wc -l)" "no two have the same"

capture as_user srun --ddp=python="$library/slurm-ddp/python" -N1 -n1 /usr/bin/python3 -c 'raise ValueError("bad batch")'
prints ': ValueError: bad batch \(<string>:1\)$' "the plugin's package has what --ddp=python starts"
capture env PYTHONPATH="$root/usr/lib/python3/dist-packages" /usr/bin/python3 -c 'import slurm_ddp; print(slurm_ddp.job().rank)'
same 0 "$output" "python3-slurm-ddp is a package of Python"

if /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
	check "so is the wheel beside it" env PIP_DISABLE_PIP_VERSION_CHECK=1 /usr/bin/python3 -m pip install --quiet --no-index \
		--target "$work/wheel" "$root"/usr/share/slurm-ddp/wheels/slurm_ddp-*.whl
else
	skip "so is the wheel beside it" "there is no pip (python3-pip)"
fi

if [ -n "$torch" ]; then
	cat >"$work/reduce.py" <<-'END'
	import torch, torch.distributed as dist, slurm_ddp_torch
	dist.init_process_group("ddp")
	total = torch.tensor([dist.get_rank() + 1.0])
	dist.all_reduce(total)
	print("sum %g by %s" % (total.item(), slurm_ddp_torch.__file__))
	dist.destroy_process_group()
	END
	chmod 755 "$work/reduce.py"
	capture as_user env LD_LIBRARY_PATH="$library" PYTHONPATH="$root/usr/lib/python3/dist-packages" USE_LIBUV=0 OMP_NUM_THREADS=1 \
		srun --ddp --mpi=none -N2 --ntasks-per-node=1 /usr/bin/python3 "$work/reduce.py"
	prints_times 2 "^sum 3 by $root/usr/lib/python3/dist-packages/slurm_ddp_torch/" "and python3-slurm-ddp-torch is PyTorch's backend"
else
	skip "python3-slurm-ddp-torch" "there is no python3-torch, libtorch-dev, pybind11-dev, python3-dev, python3-setuptools or g++"
fi

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

. "$source/tests/cluster/package/running.sh"

# ---- upgrades, without a terminal ----------------------------------------------------

# other_release VERSION COMMAND...: the plugin's package as another release would have it,
# made by a command in its folder
other_release()
{
	local folder=$work/release-$1
	mkdir "$folder" && dpkg-deb --raw-extract "$(deb slurm-ddp-plugin)" "$folder" &&
		sed -i "s/^Version: .*/Version: $1/" "$folder/DEBIAN/control" && (cd "$folder" && "${@:2}") &&
		dpkg-deb --build "$folder" "$work/slurm-ddp-plugin-$1.deb" >/dev/null
}
# The sample was a configuration file of the package, to be edited.
has_conffile()
{
	mkdir -p etc/slurm/plugstack.conf.d &&
		printf '%s\n' '# A sample' '#optional spank_ddp.so' >etc/slurm/plugstack.conf.d/spank_ddp.conf &&
		echo /etc/slurm/plugstack.conf.d/spank_ddp.conf >DEBIAN/conffiles
}
changes_sample() { echo '# one more key' >>usr/share/doc/slurm-ddp/spank_ddp.conf; }
# enabled_as LINE NAME: after an upgrade
enabled_as()
{
	status_is 0 "$2: dpkg succeeds"
	same "$1 ii " "$(grep -v '^#' "$conf") $(dpkg-query --admindir="$work/dpkg" -W -f '${db:Status-Abbrev}' slurm-ddp-plugin)" \
		"$2: the site's line is as it was"
}
other_release 0.1 has_conffile
other_release 99 changes_sample

echo 'optional spank_ddp.so gpu=error' >"$conf"
capture dpkg_there --install "$work/slurm-ddp-plugin-99.deb"
enabled_as 'optional spank_ddp.so gpu=error' "a release with another sample"
capture dpkg_there --force-confold --install "$work/slurm-ddp-plugin-0.1.deb"
enabled_as 'optional spank_ddp.so gpu=error' "back to a release that had a configuration file, as the guide says"
capture dpkg_there --purge slurm-ddp-plugin
rm -f "$conf"
capture dpkg_there --install "$work/slurm-ddp-plugin-0.1.deb"
sed -i 's/^#optional.*/optional spank_ddp.so omp=1/' "$conf"
capture dpkg_there --install "$(deb slurm-ddp-plugin)"
enabled_as 'optional spank_ddp.so omp=1' "from a release whose configuration file was edited"
capture dpkg_there --install "$work/slurm-ddp-plugin-99.deb"
enabled_as 'optional spank_ddp.so omp=1' "and on to the next one"
done_testing
