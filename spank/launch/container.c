/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/container.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

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
	void *object = path[0] != '\0' ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	void *function = object != NULL ? dlsym(object, "slurm_spank_task_init") : NULL;
	Dl_info info;
	/* Not of one of its libraries, which Slurm has loaded before. */
	bool found = function != NULL && dladdr(function, &info) != 0 && info.dli_fname != NULL &&
	             strcmp(info.dli_fname, path) == 0;

	if (object != NULL)
		dlclose(object);
	return found;
}

static int look_before(struct dl_phdr_info *info, size_t bytes, void *user)
{
	struct search *search = user;

	(void)bytes;
	if (holds(info, (uintptr_t)&container_plugin_comes_later))
		return 1;
	search->found |= prepares_tasks(info->dlpi_name);
	return search->found;
}

bool task_plugin_comes_before(void)
{
	struct search search = { false, false };

	dl_iterate_phdr(look_before, &search);
	return search.found;
}
