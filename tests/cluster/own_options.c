/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD for srun: it takes its options from the user alone. */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

static bool by_plugin;

/* Slurm calls this once its options are read, and the plugins' callbacks within. */
int spank_init_post_opt(void)
{
	int (*next)(void);
	int result;

	*(void **)&next = dlsym(RTLD_NEXT, "spank_init_post_opt");
	by_plugin = true;
	result = next != NULL ? next() : -1;
	by_plugin = false;
	return result;
}

int slurm_process_option(void *options, int letter, const char *value, bool by_variable, bool early)
{
	int (*next)(void *, int, const char *, bool, bool);

	*(void **)&next = dlsym(RTLD_NEXT, "slurm_process_option");
	return by_plugin || next == NULL ? -1 : next(options, letter, value, by_variable, early);
}
