# SPDX-License-Identifier: Apache-2.0
# The packages are upgraded, removed and purged while jobs run; for package.sh, whose cluster loads the plugin from where
# the package put it, and reads the site's line where the guide has it written.
# shellcheck shell=bash disable=SC2154,SC2034

plugin_file=$library/slurm-wlm/spank_ddp.so

# newer_release PACKAGE: the package once more, with another release's number in package, library and Python
newer_release()
{
	local folder=$work/newer/$1
	mkdir -p "$work/newer" && dpkg-deb --raw-extract "$(deb "$1")" "$folder" &&
		sed -i "s/^Version: .*/Version: $newer/; s/(= $release_built)/(= $newer)/" "$folder/DEBIAN/control" &&
		find "$folder" -type f \( -name '*.so*' -o -name '__init__.py' \) \
			-exec env LC_ALL=C sed -i "s/\b${number_built//./\\.}\b/9.9.9/g" {} + &&
		dpkg-deb --root-owner-group -Znone --build "$folder" "$work/newer/$1.deb" >/dev/null
}

# in_background NAME COMMAND...: by an ordinary user; what it prints is in $work/NAME.out
in_background()
{
	local name=$1
	shift
	{ limit=300 as_user "$@" >"$work/$name.out" 2>&1 </dev/null; echo "status $?" >>"$work/$name.out"; } &
}
has_lines() { [ "$(grep -cE -- "$3" "$work/$1.out")" -ge "$2" ]; }
# begun NAME COUNT REGEX: so many lines have come
begun() { if wait_until 60 has_lines "$@"; then ok "$1: it runs"; else output=$(cat "$work/$1.out") not_ok "$1: it runs"; fi; }
# ended_with STATUS NAME
ended_with()
{
	wait_until 60 has_lines "$2" 1 '^status '
	output=$(cat "$work/$2.out")
	status=$(sed -n 's/^status //p' <<<"$output")
	status_is "$1" "$2: it ends with status $1"
}
line_of_site() { grep -v '^# ' "$conf" 2>/dev/null; }

release_built=$(field slurm-ddp-plugin Version)
number_built=${release_built%%+*} # and behind it the commit, which is the same
newer=9.9.9${release_built#"$number_built"}
same "$("$source/build-version")" "$release_built" "packages have the version of the commit"
upgraded=(slurm-ddp-plugin libddp1 libddp-dev python3-slurm-ddp slurm-ddp-tools)
for package in "${upgraded[@]}"; do
	newer_release "$package" || not_ok "$package is made once more, as release $newer"
done

# Programs that run until a file is there: one without a library, one of libddp, and one of Python, which fails then, so
# that it is started again.
cat >"$work/plain" <<'END_PLAIN'
#!/bin/sh
echo "rank $RANK of $WORLD_SIZE by $DDP_PLUGIN_VERSION"
until [ -e "$1" ]; do sleep 0.1; done
[ "$RANK" != "${2-}" ] || exit 7
[ $# = 1 ] || sleep 60
END_PLAIN
cat >"$work/again.py" <<'END_PYTHON'
import os, sys, time
print("generation", os.environ["DDP_RESTART_COUNT"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
import slurm_ddp
if slurm_ddp.restart_count == 0:
    raise ValueError("once")
print("with %s of %s" % (slurm_ddp.__version__, slurm_ddp.__file__), flush=True)
slurm_ddp.should_stop()
END_PYTHON
sed 's|step < 400; step++|access(argv[1], F_OK) != 0 \|\| step < 400; step++|; s|^#include <stdio.h>|&\n#include <unistd.h>|' "$work/train.c" >"$work/steady.c"
sed -e 's|^#include <stdio.h>|&\n#include <unistd.h>|' \
	-e 's|for (int step = 0; step < 400; step++) {|printf("rank %d trains\\n", job->rank); fflush(stdout); for (stats.loss = 0; stats.loss >= 0;) {|' \
	-e 's|check(ddp_model_step(model, 16, loss, |usleep(5000); check(ddp_model_step(model, 16, job->rank == 0 \&\& access(argv[1], F_OK) == 0 ? -1e9 : loss, |' \
	"$work/train.c" >"$work/steady.c"
# shellcheck disable=SC2046 # flags are words
check "a training that goes on until a file is there compiles" cc -O1 "$work/steady.c" $(pkg-config --cflags --libs libddp) -o "$work/steady"
chmod 755 "$work/plain" "$work/again.py" "$work/steady"

# run_all GO [RANK]: programs begin, and end when the file GO is there; of the plain one, the rank fails then
run_all()
{
	in_background plain srun --ddp -N2 --ntasks-per-node=2 "$work/plain" "$@"
	in_background training env LD_LIBRARY_PATH="$library" srun --ddp -N2 --ntasks-per-node=2 "$work/steady" "$1"
	begun plain 4 '^rank [0-3] of 4 by '
	begun training 4 '^rank [0-3] trains'
}

# ---- an upgrade ------------------------------------------------------------------------

run_all "$work/go"
in_background again srun --ddp="python=$library/slurm-ddp/python,restart=1" -N1 -n1 /usr/bin/python3 "$work/again.py" "$work/go"
begun again 1 '^generation 0'
cp "$plugin_file" "$work/older.so" && chmod 755 "$work/older.so"
check "all packages are upgraded while jobs run" dpkg_there --install "$work"/newer/*.deb
# shellcheck disable=SC2016 # the tasks expand these
capture as_user srun --ddp -N2 --ntasks-per-node=2 sh -c 'echo "rank $RANK of $WORLD_SIZE by $DDP_PLUGIN_VERSION"'
prints_times 4 "^rank [0-3] of 4 by ${newer//+/.}$" "the next step has the newer plugin"

# beside_older NODE SRUN'S-RELEASE OTHERS: that node still has the older plugin
beside_older()
{
	on_node "$1" mount --bind "$work/older.so" "$plugin_file"
	capture as_user srun --ddp=check -N2 -n2 true
	status_is 0 "an older plugin on $1: a dry run succeeds"
	prints_times 1 "^ddp: the plugin spank_ddp is of release $2 on srun's host, of $3: a key of --ddp that" "and names the releases"
	# shellcheck disable=SC2016
	capture as_user srun --ddp -N2 -n2 sh -c '[ $RANK = 0 ] || exit 7; exec sleep 60'
	status_is 7 "an older plugin on $1: a rank fails, and srun exits with its code"
	prints_times 1 'ddp: rank 1 of 2 on n1 exited with code 7' "and it is named, once"
	prints_not 'of release' "no release is named where nobody asks"
	on_node "$1" umount "$plugin_file"
}
beside_older n1 "${newer//+/.}" "${release_built//+/.} on n1"
beside_older head "${release_built//+/.}" "${newer//+/.} on n[01], of ${newer//+/.} on n[01]"

: >"$work/go"
ended_with 0 plain
ended_with 0 training
prints '^4 ranks: ' "training: its ranks were together to the end"
ended_with 0 again
prints '^generation 1$' "again: the agent of the older plugin starts it again"
prints "^with 9.9.9 of $library/slurm-ddp/python/" "again: with what the newer package has for Python"

# ---- back, and a removal -----------------------------------------------------------------

printf '%s\n' '# The site says:' 'required spank_ddp.so gpu=ignore' >"$conf"
echo 'optional spank_ddp.so' >"$root/etc/slurm/plugstack.conf"
run_all "$work/go.too" 3
capture dpkg_there --install "${debs[@]}"
status_is 0 "the older release is installed again while jobs of the newer one run"
# shellcheck disable=SC2016
capture as_user srun --ddp -N2 -n2 sh -c 'echo "rank $RANK of $WORLD_SIZE by $DDP_PLUGIN_VERSION"'
prints_times 2 "^rank [01] of 2 by ${release_built//+/.}$" "and the next step has it"
# As where /etc is read-only.
mkdir "$work/unable" && printf '#!/bin/sh\nexit 4\n' >"$work/unable/sed" && chmod 755 "$work/unable/sed"
capture env DPKG_ROOT="$root" PATH="$work/unable:$PATH" sh "$work/dpkg/info/slurm-ddp-plugin.prerm" remove
status_is 0 "a line that cannot be changed does not keep the package from being removed"
prints 'warning: /etc/slurm/plugstack\.conf\.d/spank_ddp\.conf still names spank_ddp\.so' "but is named"
installed=("${upgraded[@]}" slurm-ddp-doc ${torch:+"$torch"})
capture dpkg_there --remove "${installed[@]}"
status_is 0 "all packages are removed while jobs run"
same '#slurm-ddp-plugin is removed# required spank_ddp.so gpu=ignore' "$(line_of_site)" "the site's line became a comment before"
prints 'warning: /etc/slurm/plugstack.conf still names spank_ddp.so' "a line elsewhere is left alone, and named"
capture as_user srun -N2 true
same '0 ' "$status $output" "other steps run, and srun says nothing"
capture as_user srun --ddp true
prints "unrecognized option '--ddp'" "srun does not know --ddp any more"
: >"$work/go.too"
ended_with 7 plain
prints_times 1 'ddp: rank 3 of 4 on n1 exited with code 7' "plain: the plugin that is gone has named the rank that failed"
ended_with 0 training
prints '^4 ranks: ' "training: its ranks were together to the end"
check "the packages are installed again" dpkg_there --install "${debs[@]}"
same 'required spank_ddp.so gpu=ignore' "$(line_of_site)" "and the site's line counts again"
capture as_user srun --ddp -N2 -n2 true
status_is 0 "and srun --ddp runs"

rm "$root/etc/slurm/plugstack.conf"
capture dpkg_there --purge "${installed[@]}"
prints_not 'not empty' "a purge leaves no folder, though root has imported slurm_ddp"
same '' "$(find "$root" -name '*ddp*' ! -path '*/man7/ddp.7.gz')" "and no file"
capture as_user srun -N2 true
same '0 ' "$status $output" "and no line"
same 'idle 2' "$(on_cluster sinfo -h -o '%T %D')" "no node was drained"
check "the packages are installed once more" dpkg_there --install "${debs[@]}"
