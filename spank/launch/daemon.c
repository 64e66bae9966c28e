#include "spank/launch/daemon.h"

#include <string.h>

bool daemon_is_launched(int count, char *const words[])
{
	/* Of Open MPI and PRRTE; MPICH, MVAPICH and Intel MPI have several hydra_*. */
	static const char *const names[] = { "orted", "prted", "pmi_proxy" };
	const char *name, *slash;

	if (count < 1 || words == NULL || words[0] == NULL)
		return false;
	slash = strrchr(words[0], '/');
	name = slash != NULL ? slash + 1 : words[0];
	for (int i = 0; i < 3; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return strncmp(name, "hydra_", 6) == 0;
}
