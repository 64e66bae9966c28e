/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, this holds a training where it writes the checkpoint of step N while a file hold-N is in the folder that
   HOLD names. So a test has the time to kill ranks in the middle of the training, however fast the machine is. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *from, const char *to)
{
	const char *name = strrchr(to, '/'), *folder = getenv("HOLD");
	int (*real)(const char *, const char *), step;
	char path[4096];

	*(void **)&real = dlsym(RTLD_NEXT, "rename");
	if (folder != NULL && sscanf(name != NULL ? name + 1 : to, "step-%d.safetensors", &step) == 1) {
		snprintf(path, sizeof(path), "%s/hold-%d", folder, step);
		while (access(path, F_OK) == 0)
			usleep(10000);
	}
	return real(from, to);
}
