#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# seconds: 300
# The units of doc/admin-guide.md's "Monitoring" under a systemd that is PID 1 of namespaces of its own, on a copy of this
# machine's files in memory, with Debian's node_exporter. UNITS=yes asks for it, as make check-packages does.
. "$source/tests/cluster/lib.sh"

[ "${UNITS-}" = yes ] || skip_all "UNITS=yes runs it"
for program in /lib/systemd/systemd /usr/bin/systemd-analyze /usr/bin/prometheus-node-exporter; do
	[ -x "$program" ] || skip_all "$program is missing (systemd, prometheus-node-exporter)"
done

root=$work/root folder=/var/lib/prometheus/node-exporter configured=$(sed -n 's/^prefix = //p' "$build/Makefile")
cgroups=/sys/fs/cgroup/unified
[ -d "$cgroups" ] || cgroups=/sys/fs/cgroup
cgroup=$cgroups/slurm-ddp-units.$$

# boot: what a container manager does before it starts systemd. /sys and /proc/sys are read-only, so that systemd leaves
# this machine's kernel as it is.
cat >"$work/boot" <<'END'
set -e
mount -t tmpfs none "$1" && mkdir "$1/upper" "$1/work" "$1/new"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/new"
cd "$1/new"
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs -o mode=755 none run
mount -t tmpfs -o mode=1777 none tmp
mount -t tmpfs -o mode=755 none dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none dev/pts
for device in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0'; do
	set -- "$1" "$2" "$3" $device
	mknod -m 666 "dev/$4" c "$5" "$6"
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 none dev/shm
mkdir -p ".$2" && cp -a "$3/." ".$2/"
: >etc/machine-id
printf '%s\n' '[Unit]' 'Requires=basic.target dbus.service systemd-journald.service' 'After=basic.target' >etc/systemd/system/units.target
mkdir run/old && pivot_root . run/old && cd / && umount -l run/old
exec env -i container=slurm-ddp PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=units.target
END

mkdir "$root" "$cgroup"
# shellcheck disable=SC2016 # the inner shell expands it
sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' _ "$cgroup" \
	unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child sh "$work/boot" "$root" "$configured" "$prefix" \
	>"$work/boot.log" 2>&1 &
manager=$!
# No process is left, nor a cgroup, which the kernel keeps until the last process in it has been reaped.
finish()
{
	kill -KILL "$manager" 2>/dev/null
	wait "$manager" 2>/dev/null
	wait_until 10 no_cgroup
}
no_cgroup() { find "$cgroup" -depth -type d -exec rmdir {} +; [ ! -e "$cgroup" ]; }
trap finish EXIT
# inside COMMAND...: as root, beside systemd
inside() { timeout "${limit:-60}" nsenter --target "$(tr -d ' ' <"/proc/$manager/task/$manager/children")" --mount --uts --ipc --net --pid -- "$@"; }
# inside_until SECONDS COMMAND: a line of shell
inside_until() { wait_until "$1" inside sh -c "$2"; }
journal() { inside journalctl --quiet --output=cat --unit=slurm-ddp-status.service; }
# is_newer INODE: whether another file has taken that one's place
is_newer() { [ "$(inside stat -c %i "$folder/slurm_ddp.prom")" != "$1" ]; }

if ! inside_until 60 'systemctl is-active units.target'; then
	output=$(tail -n 20 "$work/boot.log"; inside systemctl list-jobs --no-pager 2>&1)
	not_ok "systemd starts"
	done_testing
	exit 1
fi
ok "systemd starts"

capture inside sh -c "cp $configured/share/doc/slurm-ddp/monitoring/slurm-ddp-status.* /etc/systemd/system/ && systemctl daemon-reload"
status_is 0 "the units are copied as the guide says"
capture inside systemd-analyze verify /etc/systemd/system/slurm-ddp-status.service /etc/systemd/system/slurm-ddp-status.timer
same 0 "$status$output" "systemd-analyze verify has nothing to say"

inside mv "$folder" "$folder.away"
capture inside systemctl start slurm-ddp-status.service
status_is_not 0 "without node_exporter's folder the service fails"
output=$(journal)
prints "$folder" "and the journal names the folder"
inside sh -c "mv $folder.away $folder && systemctl reset-failed slurm-ddp-status.service"

# As root, ddp-status looks for users who have a child of slurmstepd.
limit=600 inside sh -c 'cp /bin/sh /run/slurmstepd && exec /run/slurmstepd -c "setpriv --reuid=65534 --regid=65534 --clear-groups \
	env -i SLURM_JOB_ID=2000000098 SLURM_STEP_ID=0 SLURM_PROCID=0 RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 sleep 600; true"' >/dev/null 2>&1 </dev/null &
complaints=$(journal | wc -l)
capture inside systemctl enable --now slurm-ddp-status.timer
status_is 0 "the timer is enabled and started"
if inside_until 60 "grep -q 'slurm_ddp_rank_up{jobid=\"2000000098\"' $folder/slurm_ddp.prom"; then
	ok "within a minute the file has the figures of another user's rank"
else
	output=$(journal; inside systemctl status --no-pager slurm-ddp-status.timer slurm-ddp-status.service)
	not_ok "within a minute the file has the figures of another user's rank"
fi
number=$(inside stat -c %i "$folder/slurm_ddp.prom")
check "the timer has it written again" wait_until 60 is_newer "$number"
same "$complaints" "$(journal | wc -l)" "runs that succeed leave no line in the journal"

capture inside systemctl start prometheus-node-exporter.service
status_is 0 "node_exporter starts"
# answers: the figures are among those of node_exporter
answers() { output=$(inside python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:9100/metrics").read().decode())' 2>&1) && [[ $output == *'slurm_ddp_rank_up{jobid="2000000098"'* ]]; }
if wait_until 120 answers; then
	ok "and gives the rank's figures to whoever asks"
else
	output=$(grep -E 'textfile|rror|slurm' <<<"$output"; inside journalctl --quiet --output=cat --unit=prometheus-node-exporter.service | tail -n 5)
	not_ok "and gives the rank's figures to whoever asks"
fi

inside sh -c "systemctl stop slurm-ddp-status.timer; rm -f $folder/slurm_ddp.prom; mkdir $folder/slurm_ddp.prom"
capture inside systemctl start slurm-ddp-status.service
status_is_not 0 "a file that cannot be written is a failure"
output=$(journal)
prints '^ddp-status: ' "and the journal has the words of ddp-status"
capture inside systemctl disable --now slurm-ddp-status.timer
status_is 0 "the timer is disabled, as before a removal"
same disabled "$(inside systemctl is-enabled slurm-ddp-status.timer)" "and stays so"
capture inside systemd-analyze security --no-pager slurm-ddp-status.service
printf '%s\n' "$output" | sed -n 's/.*Overall exposure level/# exposure/p'
done_testing
