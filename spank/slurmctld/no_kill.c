/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/no_kill.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/options/site.h"

enum { COMMAND_LINE_MAX = 65536 };

#define OPTION "--ddp"
#define HANDED_ON "_SLURM_SPANK_OPTION_spank_ddp_ddp"

static struct {
	const char *name;
	bool allocator; /* sbatch's or salloc's, and not srun's */
	bool set;       /* here */
} variables[] = { { .name = "SLURM_NO_KILL" }, { .name = "SBATCH_NO_KILL", .allocator = true },
	          { .name = "SALLOC_NO_KILL", .allocator = true } };

enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

/* A value that the user has set stays. */
static void set_for(bool allocator)
{
	for (int i = 0; i < VARIABLES; i++)
		if (variables[i].allocator == allocator && getenv(variables[i].name) == NULL)
			variables[i].set = setenv(variables[i].name, "set", 1) == 0;
}

/* Returns the user's list in the command line; "" for --ddp alone, NULL without it. The program's own words may contain
   --ddp, too, so the first one counts. */
static const char *list_in(const char *words, const char *end)
{
	for (const char *word = words; word < end; word += strlen(word) + 1) {
		size_t length = strlen(OPTION);
		if (strncmp(word, OPTION, length) == 0 && (word[length] == '=' || word[length] == '\0'))
			return word[length] == '=' ? word + length + 1 : word + length;
	}
	return NULL;
}

static const char *list_of_process(void)
{
	static char words[COMMAND_LINE_MAX + 1];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, words, COMMAND_LINE_MAX) : 0;

	if (fd >= 0)
		close(fd);
	words[got > 0 ? got : 0] = '\0';
	return list_in(words, words + (got > 0 ? got : 0));
}

static bool asks_for_restarts(const struct request *request, const char *list)
{
	struct settings settings = request->site.defaults;
	struct error ignored;

	return user_list_read(&settings, list, request->site.locked, &ignored) && settings.restarts > 0 && !settings.off;
}

void no_kill_begin(const struct request *request, bool allocator)
{
	const char *list = list_of_process();

	if (list == NULL && !allocator)
		list = getenv(HANDED_ON);
	if (list == NULL && !allocator)
		list = getenv("SLURM_SPANK_" HANDED_ON);
	if (list != NULL && asks_for_restarts(request, list))
		set_for(allocator);
}

void no_kill_read_list(const struct request *request, bool allocator)
{
	if (request->wanted && request->settings.restarts > 0 && allocator)
		set_for(allocator);
}

void no_kill_end(void)
{
	for (int i = 0; i < VARIABLES; i++) {
		if (variables[i].set)
			unsetenv(variables[i].name);
		variables[i].set = false;
	}
}
