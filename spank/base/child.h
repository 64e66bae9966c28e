/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of the plugin: their descriptors, name and owner, and children in whose process another thread may reap
   them. slurmstepd waits for any child, the plugin's too. From then on the number of a child may belong to another
   process. So a signal goes by a handle, where the kernel has handles. This file also ends processes that programs
   have left. libc only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* These read /proc, and take no lock and no memory. */

/* Calls `visit` with each name in the folder that is a number. The folder may change meanwhile. */
void proc_visit(const char *folder, void (*visit)(const char *number, void *about), void *about);

/* In a process that slurmstepd has forked, and that does not become a program: closes all pipes and stream sockets that
   execve(2) would close. Their other ends wait for that. Files stay, and so do sockets of datagrams: slurmstepd's code
   goes on to write its log to those numbers. */
void proc_close_channels(void);

/* Reads one of the kernel's files, whose path `format` gives, as a text: as much as there is room for. Returns how many
   bytes there are; 0, and "": it cannot be read. */
size_t proc_read(char *text, size_t bytes, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* What the kernel says of a process, or of a thread, at one moment; of signals it has masks: bit i is signal i + 1. */
struct proc_status {
	bool runs;
	uint64_t pending, caught; /* signals that wait for it; that it has handlers for */
};

/* Reads all of /proc/PID/status, in which a user's groups may fill any room. Says nothing if it cannot be read. */
struct proc_status proc_status(pid_t pid);

/* For a process that was forked from slurmstepd and that goes on as one of the plugin's own. Gives it this name, and
   the title that ps shows, in place of slurmstepd's, so that nobody who wants to end a slurmstepd finds this
   process. */
void title_take(const char *name);

/* The user whose step it is, for processes of the plugin that slurmstepd forks and that work as the user. */
enum { OWNER_GROUPS_MAX = 64 };

struct owner {
	uid_t user;
	gid_t group;
	int group_count; /* further groups of the user */
	gid_t groups[OWNER_GROUPS_MAX];
};

/* Makes this process the owner's for good, by all its ids, if any of them is root's. False: it is not the owner's. */
bool owner_become(const struct owner *owner);

/* Closes all descriptors from `first` on. */
void owner_close_files(int first);

/* A handle of a process: a descriptor (pidfd_open(2)), which never comes to belong to another process, as a number does
   once the process was reaped. */

/* Gives what is readable as soon as the process has ended, for close(2). -1, with errno: the kernel has no such thing
   (ENOSYS), or there is no such process. */
int handle_open(pid_t pid);

/* Sends a signal. False, with errno: ENOSYS: the kernel cannot do that. */
bool handle_signal(int handle, int number);

/* Whether the process is a child of the caller's process that has not ended. Reaps nothing. */
bool child_runs(pid_t child);

/* Sends a signal to a child that has not ended. False: it has, or it is no child. */
bool child_signal(pid_t child, int number);

/* Reaps the child if it ends within so many milliseconds, and gives its wait status unless `wait_status` is NULL; -1
   if somebody else has reaped it. False: the child has not ended, or a debugger holds it. A child that waits for a
   device does not end by SIGKILL either, so nobody may wait for it without a limit. */
bool child_reap(pid_t child, int wait_ms, int *wait_status);

/* With SlurmdParameters=contain_spank, Slurm makes some callbacks in a child of slurmstepd, which is in the job's
   namespace and ends behind the callback. The child shares slurmstepd's memory and nothing else: a descriptor or a
   thread that it makes goes with it, and the tasks are not its children. */

/* Called in slurmstepd itself, before any other callback. */
void contained_note_slurmstepd(void);

/* Whether the caller is in such a child. Not to be asked in a task or in a witness. */
bool contained_here(void);

/* Whether a process that is not the caller's child has ended, reaped or not. A kernel without
   pidfd_open() tells so of a reaped one only. */
bool contained_sees_end(pid_t pid);

/* Sends a signal to such a process, unless it has ended. */
void contained_signal(pid_t pid, int number);

/* These kill what programs have left, and take no lock and no memory. */
enum { ASKED_SRUNS_MAX = 64 };

/* Inner sruns that were asked to end. If `count` is ASKED_SRUNS_MAX, no further srun is asked. */
struct asked_sruns {
	uint32_t count;
	pid_t pid[ASKED_SRUNS_MAX];
};

/* Sends SIGKILL to each child of the calling process, which has one thread. Dead children count, too. A child that is
   an srun, whose step would outlive it, gets SIGTERM instead, once, and then ends its step. If `asked` is NULL, an srun
   is killed, too. A child that a dying process leaves to the caller meanwhile may be missed: the caller calls again
   until wait(2) finds no child. */
void kill_children(struct asked_sruns *asked);

/* Sends SIGKILL to processes that the calling process, a subreaper, has adopted from programs of the process group.
   Such a process is a child of the caller, and is in that group or has left the caller's session. Processes that
   is_kept() names are left alone; it is asked last, because another process may fork one meanwhile. Returns how many
   were killed. The caller adopts their children, and the next call finds them. */
uint32_t kill_adopted(pid_t group, bool (*is_kept)(pid_t pid, const void *about), const void *about);

/* Sends SIGKILL to the children of another process, and tells how many there are. */
uint32_t kill_children_of(pid_t parent);

/* Whether a child that was not reaped has not become another program by execve(2). */
bool child_never_ran(pid_t child);
