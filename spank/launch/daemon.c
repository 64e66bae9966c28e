/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/daemon.h"

#include <string.h>

bool daemon_is_launched(int count, char *const words[])
{
	/* The daemons of Open MPI and PRRTE; of MPICH, MVAPICH and Intel MPI. No prefix: there are
	   programs called hydra_* that train. */
	static const char *const names[] = { "orted", "prted", "pmi_proxy", "hydra_pmi_proxy",
		                             "hydra_bstrap_proxy" };
	const char *name, *slash;

	if (count < 1 || words == NULL || words[0] == NULL)
		return false;
	slash = strrchr(words[0], '/');
	name = slash != NULL ? slash + 1 : words[0];
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}
