/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/shrink.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/ask.h"
#include "spank/identity/nodelist.h"

/* The nodes that stay, as a list with commas. */
struct rest {
	const char *without;
	char *text; /* NULL: how long is it? */
	size_t used;
	bool found;
};

static bool add(void *user, const char *host)
{
	struct rest *rest = user;
	size_t length = strlen(host);

	if (strcmp(host, rest->without) == 0) {
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

/* For free(3); NULL: the node is not among them, it is the only one, or there is no memory. */
static char *nodes_without(const char *nodes, const char *node)
{
	struct rest rest = { .without = node };
	struct error ignored;

	if (nodes == NULL || !nodelist_walk(nodes, add, &rest, &ignored) || !rest.found || rest.used == 0)
		return NULL;
	rest.text = malloc(rest.used);
	rest.used = 0;
	if (rest.text == NULL || !nodelist_walk(nodes, add, &rest, &ignored)) {
		free(rest.text);
		return NULL;
	}
	rest.text[rest.used - 1] = '\0';
	return rest.text;
}

/* The plugin links no library, so it looks the function up in the process that has loaded it. */
static bool update(uint32_t job_id, char *nodes, struct error *error)
{
	__typeof__(slurm_init_job_desc_msg) *begin;
	__typeof__(slurm_update_job2) *send;
	__typeof__(slurm_free_job_array_resp) *release;
	job_array_resp_msg_t *answers = NULL;
	job_desc_msg_t change;
	char id[16];
	int code;

	*(void **)&begin = dlsym(RTLD_DEFAULT, "slurm_init_job_desc_msg");
	*(void **)&send = dlsym(RTLD_DEFAULT, "slurm_update_job2");
	*(void **)&release = dlsym(RTLD_DEFAULT, "slurm_free_job_array_resp");
	if (begin == NULL || send == NULL || release == NULL)
		return error_set(error, "this srun has no slurm_update_job2()");
	begin(&change);
	/* The job is named as text, because the place of the number differs between releases. */
	snprintf(id, sizeof(id), "%u", job_id);
	change.job_id_str = id;
	change.req_nodes = nodes;
	code = send(&change, &answers) == 0 ? 0 : errno;
	for (uint32_t i = 0; answers != NULL && code == 0 && i < answers->job_array_count; i++)
		code = (int)answers->error_code[i];
	release(answers);
	return code == 0 || error_set(error, "%s", spank_strerror((spank_err_t)code));
}

bool shrink_job(uint32_t job_id, const char *node, struct error *error)
{
	job_info_msg_t *jobs = ask_jobs(job_id);
	bool done = error_set(error, "it is the only node, or SLURM does not tell the job's nodes");

	/* Slurm tells of all components of a heterogeneous job. */
	for (uint32_t i = 0; jobs != NULL && !done && i < jobs->record_count; i++) {
		char *nodes = nodes_without(jobs->job_array[i].nodes, node);
		if (nodes != NULL)
			done = update(jobs->job_array[i].job_id, nodes, error);
		free(nodes);
	}
	ask_free_jobs(jobs);
	return done;
}
