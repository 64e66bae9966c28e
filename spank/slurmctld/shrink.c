/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/shrink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/identity/nodelist.h"
#include "spank/slurmctld/ask.h"

enum {
	AGAIN_SECONDS = 1,
	MOST_SECONDS = 10,
};

/* The nodes that stay, as a list with commas. */
struct rest {
	const char *without; /* names with commas */
	char *text;          /* NULL: how long is it? */
	size_t used;
	bool found;
};

static bool is_among(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = names; at != NULL; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
			return true;
	}
	return false;
}

static bool add(void *user, const char *host)
{
	struct rest *rest = user;
	size_t length = strlen(host);

	if (is_among(rest->without, host)) {
		rest->found = true;
		return true;
	}
	if (rest->text != NULL) {
		memcpy(rest->text + rest->used, host, length);
		rest->text[rest->used + length] = ',';
	}
	rest->used += length + 1;
	return true;
}

/* Returns a text for free(3); NULL: no node would stay, or there is no memory. */
static char *list_of(const char *nodes, struct rest *rest)
{
	struct error ignored;

	rest->text = rest->used > 0 ? malloc(rest->used) : NULL;
	rest->used = 0;
	if (rest->text != NULL && !nodelist_walk(nodes, add, rest, &ignored)) {
		free(rest->text);
		rest->text = NULL;
	}
	if (rest->text != NULL)
		rest->text[rest->used - 1] = '\0';
	return rest->text;
}

char *shrink_list(const char *nodes, const char *without)
{
	struct rest rest = { .without = without };
	struct error ignored;

	return nodelist_walk(nodes, add, &rest, &ignored) ? list_of(nodes, &rest) : NULL;
}

static int shrink(uint32_t job_id, const char *job_nodes, const char *nodes)
{
	struct rest rest = { .without = nodes };
	struct error ignored;
	char *stay, name[ASK_JOB_NAME_MAX];
	int code;

	if (job_nodes == NULL || !nodelist_walk(job_nodes, add, &rest, &ignored))
		return ESLURM_INVALID_NODE_NAME;
	/* SLURM takes a node that it calls down out of the job by itself. */
	if (!rest.found)
		return 0;
	stay = list_of(job_nodes, &rest);
	/* The number is that of one component or one element, whose nodes these are. */
	snprintf(name, sizeof(name), "%u", job_id);
	code = stay != NULL ? ask_to_change(name, stay, NULL, false) : ESLURM_INVALID_NODE_NAME;
	free(stay);
	return code;
}

/* Gives the code with which slurmctld answers; -1: it does not tell of the job. */
static int shrink_all(uint32_t job_id, const char *nodes)
{
	job_info_msg_t *jobs = ask_jobs(job_id);
	int code = jobs != NULL && jobs->record_count > 0 ? 0 : -1;

	/* SLURM tells of all components of a heterogeneous job. */
	for (uint32_t i = 0; jobs != NULL && code == 0 && i < jobs->record_count; i++)
		code = shrink(jobs->job_array[i].job_id, jobs->job_array[i].nodes, nodes);
	ask_free_jobs(jobs);
	return code;
}

/* slurmctld waits for slurmdbd. Releases from 24.11 on do not. */
static bool awaits_slurmdbd(int code)
{
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 11, 0)
	return code == ESLURM_JOB_SETTING_DB_INX;
#else
	(void)code;
	return false;
#endif
}

static bool has_slurmdbd(void)
{
	const slurm_conf_t *conf = ask_configuration();

	return conf != NULL && conf->accounting_storage_type != NULL &&
	       strstr(conf->accounting_storage_type, "slurmdbd") != NULL;
}

/* Whether slurmctld did not answer, or waits for slurmdbd. */
static bool may_change(int code)
{
	return code < ESLURM_INVALID_PARTITION_NAME || (awaits_slurmdbd(code) && has_slurmdbd());
}

bool shrink_job(uint32_t job_id, const char *nodes, struct error *error)
{
	const time_t begin = time(NULL);
	int code;

	while ((code = shrink_all(job_id, nodes)) != 0 && may_change(code) && time(NULL) - begin < MOST_SECONDS)
		sleep(AGAIN_SECONDS);
	if (code == 0)
		return true;
	if (code < 0)
		return error_set(error, "slurmctld does not tell the job's nodes");
	if (awaits_slurmdbd(code) && !has_slurmdbd())
		return error_set(error, "without slurmdbd, SLURM changes the nodes of a job once only");
	return error_set(error, "%s", spank_strerror((spank_err_t)code));
}
