/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options/request.h"
#include "spank/options/site.h"

#include <stdio.h>
#include <string.h>

bool request_take_list(struct request *request, const char *list, struct error *error)
{
	if (list == NULL || strcmp(list, "(null)") == 0)
		list = "";
	if (request->lists++ > 0)
		memcpy(request->before, request->list, sizeof(request->before));
	snprintf(request->list, sizeof(request->list), "%s", list);
	request->wanted = true;
	request->settings = request->site.defaults;
	if (request->error.text[0] != '\0') {
		*error = request->error;
		return false;
	}
	if (!user_list_read(&request->settings, list, request->site.locked, error) ||
	    !site_allows(&request->site, &request->settings, error))
		return false;
	/* The step is refused, as its tasks would otherwise run without ranks. */
	if (request->site.off && !request->settings.off)
		return error_set(error, "the administrator has switched --ddp off in the configuration of Slurm here");
	request->wanted = !request->settings.off;
	return true;
}

/* The list that the user gave to the component. sbatch puts a component's list into its own environment, and reads it
   there for the next component, behind the lines of the script, so that it hides a list of the script. */
static const char *own_list(const struct request *request, bool in_sbatch)
{
	const bool hides = in_sbatch && request->any && request->lists > 1 && strcmp(request->list, request->first) == 0;

	return hides ? request->before : request->list;
}

bool request_components_agree(struct request *request, bool in_sbatch, struct error *error)
{
	const char *own = own_list(request, in_sbatch);
	const bool later = request->components++ > 0, given = request->lists > 0;

	request->lists = 0;
	if (!given)
		return true;
	if (!request->any && later && in_sbatch)
		return error_set(error, "sbatch gives the steps of a heterogeneous job the list of the first component, but only "
		                 "component %u has --ddp='%.80s': give it to the first one", request->components - 1, own);
	if (!request->any)
		memcpy(request->first, own, sizeof(request->first));
	request->any = true;
	return strcmp(request->first, own) == 0 ||
	       error_set(error, "Slurm gives all components of a heterogeneous job or step one list, but "
	                 "one has --ddp='%.80s' and another one has --ddp='%.80s': give each the same",
	                 request->first, own);
}

bool request_locks(const struct request *request, const char *key)
{
	return (request->site.locked >> option_find(key, strlen(key)) & 1) != 0;
}
