/*
 * What the user told srun that matters to the plugin. Slurm tells a plugin neither
 * srun's options nor where the program's begin. Pure.
 */
#ifndef SPANK_SRUN_OPTIONS_H
#define SPANK_SRUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Whether srun was told to let the other tasks run when one fails: by -K0, by
 * --kill-on-bad-exit=0, or by SLURM_KILL_BAD_EXIT=0.
 *
 * `words` is what srun was started with, each with its NUL behind it, in `bytes`;
 * the first `own_words` of them are srun's. `variable` is the value of
 * SLURM_KILL_BAD_EXIT, or NULL; what stands in the line counts more.
 */
bool srun_goes_on_after_failure(const char *words, size_t bytes, int own_words, const char *variable);

/* Whether the words, of the same kind, hold --wait-for-children: Slurm then takes a
   task for running as long as any process is in its cgroup. */
bool srun_waits_for_children(const char *words, size_t bytes, int own_words);

/* The value of the words' last -w, --nodelist, -F or --nodefile, NULL without one: Slurm
   then does not look at SLURM_HOSTFILE. */
const char *srun_nodes(const char *words, size_t bytes, int own_words);

/* Whether the words hold --interactive, by which salloc starts its shell where slurm.conf
   says LaunchParameters=use_interactive_step. */
bool srun_starts_a_shell(const char *words, size_t bytes, int own_words);

#endif
