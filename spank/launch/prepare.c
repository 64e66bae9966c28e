/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/prepare.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/launch/names.h"
#include "spank/launch/variables.h"
#include "spank/wire/deal.h"

#define ABSENT PLUGIN_ABSENT_ON "this node"

static bool export_to_tasks(const char *name, const char *value, struct error *error)
{
	return setenv(name, value, 1) == 0 ||
	       error_set(error, "cannot set %s: %s", name, strerror(errno));
}

/* The first host of the file that lays the tasks out: one or more to a line. */
static bool read_hostfile(const char *path, char host[HOST_NAME_MAX_BYTES], struct error *error)
{
	char line[4096];
	bool found = false;
	FILE *file = fopen(path, "re");

	if (file == NULL)
		return error_set(error, "cannot read the hostfile '%.200s': %s", path, strerror(errno));
	while (!found && fgets(line, sizeof(line), file) != NULL) {
		char *text = line + strspn(line, " \t\r\n,");
		text[strcspn(text, " \t\r\n*#")] = '\0';
		size_t length = strlen(text);
		while (length > 0 && text[length - 1] == ',')
			text[--length] = '\0';
		if (length > 0 && !nodelist_first(text, host, error)) {
			fclose(file);
			return false;
		}
		found = length > 0;
	}
	fclose(file);
	return found || error_set(error, "the hostfile '%.200s' names no host", path);
}

/* Programs and torchrun, which may run without `launcher`, read these. With the plugin, tasks put their variables into
   the places of these. */
static bool export_absence(const struct settings *settings, struct error *error)
{
	const struct name *name;

	for (int i = 0; (name = name_at(i)) != NULL; i++)
		if ((name->kind == NAME_RANK ? !settings->launcher : strncmp(name->text, "PET_", 4) == 0) &&
		    !export_to_tasks(name->text, PLUGIN_IS_ABSENT, error))
			return false;
	return true;
}

bool launch_prepare(const struct settings *settings, const char *hostfile, struct error *error)
{
	static char key[DEAL_KEY_DIGITS + 1];
	char host[HOST_NAME_MAX_BYTES];

	unsetenv("SLURM_DDP_KEY");
	unsetenv("SLURM_DDP_FIRST_HOST");
	/* Slurm sets it for a step that has ports, and leaves another step's in one without. */
	unsetenv("SLURM_STEP_RESV_PORTS");
	if (key[0] == '\0' && !deal_make_key(key))
		return error_set(error, "cannot make the step's key: %s", strerror(errno));
	if (hostfile != NULL && hostfile[0] != '\0' &&
	    (!read_hostfile(hostfile, host, error) || !export_to_tasks("SLURM_DDP_FIRST_HOST", host, error)))
		return false;
	if (!export_absence(settings, error))
		return false;
	/* Last: without it the nodes refuse, should srun go on after an error. */
	return export_to_tasks("SLURM_DDP_KEY", key, error);
}

void launch_leave_step(void)
{
	static struct variables variables;

	environment_leave_step(&variables, environ);
	for (int i = 0; i < variables.count; i++)
		unsetenv(variables.item[i].name);
}

bool launch_replace_command(int count, char *words[], bool programs)
{
	/* srun has put the file of --multi-prog, which has a line for each task, into a word. */
	int index = programs ? 1 : 0;
	char *text = strdup(programs ? "* 'ddp: " ABSENT "'\n" : "ddp: " ABSENT);

	if (text == NULL || index >= count || words == NULL) {
		free(text);
		return false;
	}
	words[index] = text;
	return true;
}

void launch_list_stale(char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	const struct name *name;

	for (int i = 0; (name = name_at(i)) != NULL; i++) {
		const char *value = getenv(name->text);
		if ((name->kind == NAME_RANK || name->kind == NAME_TORCHRUN) && value != NULL &&
		    strcmp(value, PLUGIN_IS_ABSENT) != 0)
			sink_add(&sink, "%s%s=%.40s", sink.used > 0 ? " " : "", name->text, value);
	}
	make_printable(text);
}

/* ---- plugstack's order ---- */

enum { OBJECTS_MAX = 512 };

struct search {
	bool behind_us, found;
};

static bool object_holds(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && address - info->dlpi_addr - part->p_vaddr < part->p_memsz)
			return true;
	}
	return false;
}

/* Called for each object in the order in which they were loaded. */
static int find_plugins(struct dl_phdr_info *info, size_t bytes, void *user)
{
	struct search *search = user;
	const char *slash = strrchr(info->dlpi_name, '/');

	(void)bytes;
	if (object_holds(info, (uintptr_t)&container_plugin_comes_later))
		search->behind_us = true;
	else if (search->behind_us && slash != NULL && strcmp(slash, "/spank_pyxis.so") == 0)
		search->found = true;
	return 0;
}

bool container_plugin_comes_later(void)
{
	struct search search = { false, false };

	dl_iterate_phdr(find_plugins, &search);
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
	if (object_holds(info, (uintptr_t)&container_plugin_comes_later) || objects->count == OBJECTS_MAX)
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
