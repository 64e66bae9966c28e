/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/container.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
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

enum { OBJECTS_MAX = 512 };

struct search {
	bool behind_us, found;
};

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && address - info->dlpi_addr - part->p_vaddr < part->p_memsz)
			return true;
	}
	return false;
}

/* Called for each object in the order in which they were loaded. */
static int look_at(struct dl_phdr_info *info, size_t bytes, void *user)
{
	struct search *search = user;
	const char *slash = strrchr(info->dlpi_name, '/');

	(void)bytes;
	if (holds(info, (uintptr_t)&container_plugin_comes_later))
		search->behind_us = true;
	else if (search->behind_us && slash != NULL && strcmp(slash, "/spank_pyxis.so") == 0)
		search->found = true;
	return 0;
}

bool container_plugin_comes_later(void)
{
	struct search search = { false, false };

	dl_iterate_phdr(look_at, &search);
	return search.found;
}

static bool prepares_tasks(const char *path)
{
	void *object = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	void *function = object != NULL ? dlsym(object, "slurm_spank_task_init") : NULL;
	Dl_info info;
	/* Not of one of its libraries, which Slurm has loaded before. */
	bool found = function != NULL && dladdr(function, &info) != 0 && info.dli_fname != NULL &&
	             strcmp(info.dli_fname, path) == 0;

	if (object != NULL)
		dlclose(object);
	return found;
}

struct objects {
	char *path[OBJECTS_MAX];
	size_t count;
};

static int list_before(struct dl_phdr_info *info, size_t bytes, void *user)
{
	struct objects *objects = user;

	(void)bytes;
	if (holds(info, (uintptr_t)&container_plugin_comes_later) || objects->count == OBJECTS_MAX)
		return 1;
	objects->path[objects->count] = info->dlpi_name[0] != '\0' ? strdup(info->dlpi_name) : NULL;
	objects->count += objects->path[objects->count] != NULL;
	return 0;
}

/* The loader's list is locked while it is looked at. A thread of Slurm's that loads a plugin meanwhile has the other
   one of the loader's locks, for which a look at a single object would wait. */
bool task_plugin_comes_before(void)
{
	struct objects objects = { .count = 0 };
	bool found = false;

	dl_iterate_phdr(list_before, &objects);
	for (size_t i = 0; i < objects.count; i++) {
		found = found || prepares_tasks(objects.path[i]);
		free(objects.path[i]);
	}
	return found;
}
