/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/srun_environment.h"

#include <stdlib.h>
#include <string.h>

/* Whether one of the words, which end with NULL, begins the text. */
static bool begins(const char *const words[], const char *text)
{
	for (; *words != NULL; words++)
		if (strncmp(text, *words, strlen(*words)) == 0)
			return true;
	return false;
}

static bool stays(const char *entry, bool binds)
{
	static const char *const options[] = { "SLURM_", "SRUN_", NULL };
	static const char *const found[] = { "SLURM_CONF=", "SLURM_CONF_SERVER=", "SLURM_JWT=",
		                             "SLURM_WORKING_CLUSTER=", NULL };
	static const char *const binding[] = {
		"SLURM_CPU_BIND", "SLURM_MEM_BIND",       "SLURM_HINT=",      "SLURM_NETWORK=",
		"SLURM_GPU",      "SLURM_TRES_PER_TASK=", "SLURM_TRES_BIND=", NULL
	};

	return !begins(options, entry) || begins(found, entry) || (binds && begins(binding, entry));
}

char **srun_environment(char *const environment[], bool binds, char *more)
{
	size_t count = 0, used = 0;
	char **list;

	while (environment[count] != NULL)
		count++;
	list = malloc((count + 2) * sizeof(*list));
	if (list == NULL)
		return NULL;
	for (size_t i = 0; i < count; i++)
		if (stays(environment[i], binds))
			list[used++] = environment[i];
	if (more != NULL)
		list[used++] = more;
	list[used] = NULL;
	return list;
}
