/*
 * Whether the user told srun to go on when a task fails: -K0, or
 * --kill-on-bad-exit=0, or SLURM_KILL_BAD_EXIT=0. Slurm tells a plugin neither
 * its options nor where the program's begin. Pure.
 */
#ifndef SPANK_BAD_EXIT_H
#define SPANK_BAD_EXIT_H

#include <stdbool.h>
#include <stddef.h>

/*
 * `words` is what srun was started with, each with its NUL behind it, in `bytes`;
 * the first `own_words` of them are srun's. `variable` is the value of
 * SLURM_KILL_BAD_EXIT, or NULL; what stands in the line counts more.
 */
bool bad_exit_is_zero(const char *words, size_t bytes, int own_words, const char *variable);

/* Whether the words, of the same kind, hold --wait-for-children: Slurm then takes a
   task for running as long as any process is in its cgroup. */
bool waits_for_children(const char *words, size_t bytes, int own_words);

#endif
