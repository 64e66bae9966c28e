/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/request.h"
#include "spank/user_list.h"

#include <stdio.h>
#include <string.h>

bool request_take_list(struct request *request, const char *list, struct error *error)
{
	if (list == NULL || strcmp(list, "(null)") == 0)
		list = "";
	request->given = true;
	snprintf(request->list, sizeof(request->list), "%s", list);
	request->wanted = true;
	request->settings = request->site.defaults;
	if (request->error.text[0] != '\0') {
		*error = request->error;
		return false;
	}
	if (!user_list_read(&request->settings, list, request->site.locked, error))
		return false;
	request->wanted = !request->settings.off;
	return true;
}

bool request_components_agree(struct request *request, struct error *error)
{
	if (!request->given)
		return true;
	request->given = false;
	if (!request->any)
		memcpy(request->first, request->list, sizeof(request->first));
	request->any = true;
	return strcmp(request->first, request->list) == 0 ||
	       error_set(error, "Slurm gives all components of a heterogeneous job or step one list, but "
	                 "one has --ddp='%.80s' and another one has --ddp='%.80s': give each the same",
	                 request->first, request->list);
}

bool request_locks(const struct request *request, const char *key)
{
	return (request->site.locked >> option_find(key, strlen(key)) & 1) != 0;
}
