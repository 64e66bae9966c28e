#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# runs: unit
# What spank_ddp.so shows and needs: SPANK's symbols, and libc. Slurm looks
# symbols up in the plugin and in its libraries, so more would be called.
plugin=spank/.libs/spank_ddp.so
number=0

result()
{
	number=$((number + 1))
	echo "$1 $number - $2"
}

# same WANTED GOT NAME
same()
{
	if [ "$1" = "$2" ]; then
		result ok "$3"
	else
		result "not ok" "$3"
		printf '%s\n' "wanted:" "$1" "got:" "$2" | sed 's/^/# /'
	fi
}

# bytes_of SYMBOL: its value, as hexadecimal digits. (What strings(1) shows may
# begin before the symbol.)
bytes_of()
{
	# shellcheck disable=SC2046 # address and size are two words
	set -- $(nm -D -S $plugin | awk -v symbol="$1" '$4 == symbol { print $1, $2 }')
	objdump -s -j .rodata --start-address="0x$1" --stop-address=$((0x$1 + 0x$2)) $plugin |
		awk '/^ [0-9a-f]+ / { line = substr($0, length($1) + 3, 35); gsub(/ /, "", line); printf "%s", line }'
}

if [ ! -f $plugin ]; then
	echo "1..0 # SKIP the plugin is not built: no spank.h"
	exit 0
fi
if nm -D $plugin | grep -qE '__(asan|tsan)_init'; then
	echo "1..0 # SKIP a sanitizer adds symbols and libraries"
	exit 0
fi

same "plugin_name
plugin_type
plugin_version
slurm_spank_exit
slurm_spank_init
slurm_spank_init_post_opt
slurm_spank_local_user_init
slurm_spank_task_exit
slurm_spank_task_init
slurm_spank_task_post_fork
slurm_spank_user_init
spank_plugin_version" "$(nm -D --defined-only $plugin | awk '{ print $3 }' | LC_ALL=C sort)" \
	"it exports SPANK's symbols and no other"
same "libc.so.6" \
	"$(readelf -d $plugin | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | grep -vE '^(ld-linux|libpthread|libdl)')" \
	"it needs no library beyond the C library's own"
same "" "$(nm -D --undefined-only $plugin | awk '{ print $2 }' |
	grep -E '^(popen|system|execl[a-z]*|execv|execvpe?|fexecve|gethostby.*|strcpy|strcat|sprintf|gets|alloca|tmpnam)(@|$)')" \
	"it calls no shell, and nothing that trusts lengths"
same "spank/srun/relaunch.c" \
	"$(cd "${srcdir:-.}" && grep -rlE '[^a-z_]execve\(' spank --include='*.c')" \
	"srun alone becomes another program: itself again"
same "spank/launch/preflight.c" \
	"$(cd "${srcdir:-.}" && grep -rl 'posix_spawn' spank --include='*.c' | grep -v ^spank/status/)" \
	"it starts a program in srun alone, for preflight="
same "spank/witness/agent.c spank/witness/dump.c spank/witness/pump.c" \
	"$(cd "${srcdir:-.}" && grep -rlE '[^a-z_]fork\(\)' spank --include='*.c' | grep -v ^spank/status/ |
		LC_ALL=C sort | tr '\n' ' ' | sed 's/ $//')" \
	"it forks in agents, and to write as the user, alone"
# What is root in slurmstepd, or may be: it opens the kernel's own files, whose names begin with /proc or /sys.
opens='spank/base/child.c spank/node/stall.c spank/node/supervise.c'
same "$opens" \
	"$(cd "${srcdir:-.}" && grep -rlE '[^a-z_](f?open|openat|opendir|mkdir|unlink|rename|creat)\(' spank/base spank/wire spank/node spank/stepd.c --include='*.c' |
		LC_ALL=C sort | tr '\n' ' ' | sed 's/ $//')" \
	"root opens no files but in three sources"
# shellcheck disable=SC2086 # paths are words
same "" "$(cd "${srcdir:-.}" && grep -hE '"/(dev|etc|home|opt|run|tmp|usr|var)[/"]' $opens)" "which name the kernel's files"
# Each call on a line of its own, of which the first text is to name a kernel's file.
same "spank/node/supervise.c spank/witness/pump.c" \
	"$(cd "${srcdir:-.}" && grep -rl '[^a-z_]proc_read(' spank --include='*.c' | LC_ALL=C sort | while read -r file; do
		! tr '\n' ' ' <"$file" | sed 's/[^a-z_]proc_read(/\n&/g' | sed -n '/^.proc_read(/s/;.*//p' |
			grep -v '^.proc_read(char ' | grep -qvE '^[^"]*"/proc/' || echo "$file"
	done | tr '\n' ' ' | sed 's/ $//')" \
	"so do callers of proc_read(), but for two that are given the path"
same "spank/identity/master.c" "$(cd "${srcdir:-.}" && grep -rl 'getaddrinfo(' spank --include='*.c')" "names are resolved as the user alone"
same "" "$(grep -rhE '(^|[^a-z_])dlopen\(' "${srcdir:-.}/spank" --include='*.c' | grep -v RTLD_NOLOAD)" \
	"it opens a library only if that is loaded already"
same "dlsym getaddrinfo" \
	"$(nm -D --undefined-only $plugin | awk '{ sub(/@.*/, "", $2); print $2 }' |
		grep -E '^(dlsym|getaddrinfo|getpw.*|getgr.*)$' | LC_ALL=C sort | tr '\n' ' ' | sed 's/ $//')" \
	"of the resolver it knows what addr=ip asks as the user"
# What no version of the C library has, Slurm has to have: a source that is missing in files.mk shows here, too.
same "" "$(nm -D --undefined-only $plugin | awk '$1 == "U" && $2 !~ /@/ { print $2 }' |
	grep -vE '^(slurm_(error|info|debug|spank_log)|spank_(context|get_item|setenv|unsetenv|option_register|strerror))$')" \
	"of Slurm it needs what spank.h documents, and of its own nothing"
same "" "$(nm -D --undefined-only $plugin | awk '{ print $2 }' | grep -E '^(slurm|spank)_.*@')" "and no version of it"
same "7370616e6b5f64647000" "$(bytes_of plugin_name)" "it is named spank_ddp"
echo "1..$number"
