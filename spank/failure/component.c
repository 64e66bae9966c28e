#include "spank/failure/component.h"

#include <stdbool.h>
#include <stddef.h>

#include <slurm/slurm.h>

#include "spank/ask.h"
#include "spank/identity/nodelist.h"

/* The first component of the job's heterogeneous job; 0: it is none. */
static uint32_t find_leader(uint32_t job_id)
{
	job_info_msg_t *jobs = ask_jobs(job_id);
	uint32_t leader = 0;

	for (uint32_t i = 0; jobs != NULL && i < jobs->record_count; i++)
		if (jobs->job_array[i].job_id == job_id && jobs->job_array[i].het_job_id != NO_VAL)
			leader = jobs->job_array[i].het_job_id;
	ask_free_jobs(jobs);
	return leader;
}

struct search {
	const char *nodes;
	bool found;
};

static bool look_for(void *user, const char *host)
{
	struct search *search = user;

	search->found = nodelist_has(search->nodes, host);
	return !search->found;
}

/* Searches in the controller's list: to search in the user's could take long. */
static bool share_a_node(const char *nodes, const char *step_nodes)
{
	struct search search = { .nodes = nodes };
	struct fault ignored;

	return nodes != NULL && nodelist_walk(step_nodes, look_for, &search, &ignored) && search.found;
}

int component_jobs(uint32_t job_id, const char *step_nodes, uint32_t jobs[COMPONENTS_MAX])
{
	uint32_t leader = find_leader(job_id);
	job_info_msg_t *all = leader != 0 ? ask_jobs(leader) : NULL;
	int count = 0;

	jobs[count++] = job_id;
	for (uint32_t i = 0; all != NULL && i < all->record_count && count < COMPONENTS_MAX; i++) {
		const job_info_t *job = &all->job_array[i];
		if (job->het_job_id == leader && job->job_id != job_id &&
		    share_a_node(job->nodes, step_nodes))
			jobs[count++] = job->job_id;
	}
	ask_free_jobs(all);
	return count;
}
