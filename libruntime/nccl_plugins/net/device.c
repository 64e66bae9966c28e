/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_plugins/net/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/c_locale.h"
#include "comm/net/log.h"
#include "nccl_plugins/net/abi.h"
#include "nccl_plugins/net/control.h"
#include "nccl_plugins/net/gpudirect.h"
#include "nccl_plugins/net/report.h"

static struct {
	pthread_mutex_t lock;
	bool found;
	int count;
	net_device devices[NET_DEVICES_MAX];
} list = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- UCX ---------------------------------------------------------------------------------- */

/* UCX takes no shared memory for connections whose failure it is to report, unless it is
   told so. Nor does it have a receiver copy large messages out of the sender's process
   (CMA), which is several times as fast, since it could not stop that after a failure: a
   receiver may then read what the sender has put there since. Who gives up a connection
   with messages under way here has lost the other process, or aborts the operation that
   they belong to, whose result nobody may use. UCX 1.13 hears that of a transport only by
   the environment. What the user has set stays. */
static void allow_shared_memory(void)
{
	static const char *const names[] = { "UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING",
	                                     "UCX_CMA_MEMORY_INVALIDATE" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (setenv(names[i], "y", 0) != 0)
			net_info("NET/ddpucx: no memory to set %s", names[i]);
	}
}

ucs_status_t net_ucx_start(const net_device *device, ucp_context_h *context)
{
	const ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
		.features = UCP_FEATURE_TAG | (device != NULL && device->cuda != 0 ? UCP_FEATURE_RMA : 0),
		.name = "ddpucx",
	};
	ucp_config_t *config;

	ucs_status_t status = ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK)
		return status;
	if (getenv("UCX_KEEPALIVE_INTERVAL") == NULL && ucp_config_modify(config, "KEEPALIVE_INTERVAL", "1s") != UCS_OK)
		net_info("NET/ddpucx: this UCX does not know KEEPALIVE_INTERVAL");
	if (device != NULL && !device->any)
		status = ucp_config_modify(config, "NET_DEVICES", device->name);
	if (status == UCS_OK)
		status = ucp_init(&params, config, context);
	ucp_config_release(config);
	return status;
}

/* ---- what /sys tells ------------------------------------------------------------------------ */

static bool read_line(const char *path, char *line, int bytes)
{
	FILE *file = fopen(path, "re");
	bool had = file != NULL && fgets(line, bytes, file) != NULL;

	if (file != NULL)
		fclose(file);
	return had;
}

enum { FOLDER_MAX = NET_DEVICE_NAME_MAX + 32, FILE_MAX = FOLDER_MAX + 32 };

static void find_path(net_device *d, const char *folder)
{
	char link[FILE_MAX];

	snprintf(link, sizeof(link), "%s/device", folder);
	if (realpath(link, d->path) == NULL)
		d->path[0] = '\0';
}

/* "node_guid" is four groups of hexadecimal digits, "rate" begins with Gbit/s. */
static void ask_rdma(net_device *d, const char *folder)
{
	char path[FILE_MAX], line[128];
	unsigned int part[4];

	snprintf(path, sizeof(path), "%s/node_guid", folder);
	if (read_line(path, line, sizeof(line)) &&
	    sscanf(line, "%4x:%4x:%4x:%4x", &part[0], &part[1], &part[2], &part[3]) == 4)
		d->guid = (uint64_t)part[0] << 48 | (uint64_t)part[1] << 32 | (uint64_t)part[2] << 16 | part[3];
	snprintf(path, sizeof(path), "%s/ports/%d/rate", folder, d->port);
	if (read_line(path, line, sizeof(line)) && ddp_read_number(line, NULL) > 0)
		d->speed_mbps = (int)(ddp_read_number(line, NULL) * 1000);
}

static void ask_system(net_device *d, int index)
{
	char folder[FOLDER_MAX], path[FILE_MAX], line[128], card[NET_DEVICE_NAME_MAX];
	const char *colon = strchr(d->name, ':');

	d->guid = (uint64_t)index;
	d->port = colon != NULL && atoi(colon + 1) > 0 ? atoi(colon + 1) : 1;
	d->speed_mbps = 10000;
	if (d->any)
		return;
	snprintf(card, sizeof(card), "%.*s", (int)strcspn(d->name, ":"), d->name);
	snprintf(folder, sizeof(folder), "/sys/class/%s/%s", d->rdma ? "infiniband" : "net", card);
	find_path(d, folder);
	if (d->rdma) {
		ask_rdma(d, folder);
		return;
	}
	snprintf(path, sizeof(path), "%s/speed", folder);
	if (read_line(path, line, sizeof(line)) && atoi(line) > 0)
		d->speed_mbps = atoi(line);
}

/* ---- what UCX tells -------------------------------------------------------------------------- */

/* UCX has no call that names the devices it would use, after its own settings are
   applied, but it prints them: "# resource 0 : md 0 dev 0 flags -- tcp/eth0". */
static char *printed(ucp_context_h context)
{
	char *text = NULL;
	size_t length;
	FILE *stream = open_memstream(&text, &length);

	if (stream == NULL)
		return NULL;
	ucp_context_print_info(context, stream);
	if (fclose(stream) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

static bool is_among(const char *word, const char *const *words)
{
	for (; *words != NULL; words++) {
		if (strncmp(word, *words, strlen(*words)) == 0)
			return true;
	}
	return false;
}

static net_device *find(const char *name)
{
	for (int i = 0; i < list.count; i++) {
		if (strcmp(list.devices[i].name, name) == 0)
			return &list.devices[i];
	}
	return NULL;
}

static void add(const char *transport, const char *name)
{
	static const char *const on_node[] = { "posix", "sysv", "xpmem", "cma", "knem", "self", "cuda_", "gdr_",
	                                       "rocm_", "ze_", "gaudi_", NULL };
	static const char *const over_sockets[] = { "tcp", NULL };

	if (is_among(transport, on_node) || find(name) != NULL || list.count == NET_DEVICES_MAX)
		return;
	net_device *d = &list.devices[list.count];
	*d = (net_device){ .rdma = !is_among(transport, over_sockets), .loopback = strcmp(name, "lo") == 0 };
	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->transport, sizeof(d->transport), "%s", transport);
	if (d->rdma || net_control_allows(name))
		list.count++;
}

/* Keeps those for which `drop` is false, unless that is none. */
static void drop_if(bool (*drop)(const net_device *))
{
	int kept = 0;

	for (int i = 0; i < list.count; i++)
		kept += !drop(&list.devices[i]);
	if (kept == 0 || kept == list.count)
		return;
	kept = 0;
	for (int i = 0; i < list.count; i++) {
		if (!drop(&list.devices[i]))
			list.devices[kept++] = list.devices[i];
	}
	list.count = kept;
}

static bool is_slow(const net_device *d)
{
	return !d->rdma;
}

static bool is_loopback(const net_device *d)
{
	return d->loopback;
}

static bool is_local(const net_device *d)
{
	static const char *const of_containers[] = { "docker", "podman", "cni", "virbr", "veth", "br-", NULL };

	return is_among(d->name, of_containers);
}

static void read_devices(const char *text)
{
	char transport[NET_DEVICE_NAME_MAX], name[NET_DEVICE_NAME_MAX];

	list.count = 0;
	for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "# resource %*d : md %*d dev %*d flags %*s %63[^/ \n]/%63s", transport, name) == 2)
			add(transport, name);
	}
	drop_if(is_slow);
	drop_if(is_loopback);
	drop_if(is_local);
	if (list.count == 0)
		list.devices[list.count++] = (net_device){ .name = "memory", .transport = "any", .any = true };
}

static ddp_status ask_ucx(void)
{
	DDP_UCX_FOR_LIBDDP();
	ucp_context_attr_t attributes = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
	ucp_context_h context;

	allow_shared_memory();
	ucs_status_t status = net_ucx_start(NULL, &context);

	if (status != UCS_OK)
		return ddp_fail(DDP_ERR_IO, "UCX cannot start: %s; NCCL_DEBUG=INFO shows more", ucs_status_string(status));
	bool cuda = ucp_context_query(context, &attributes) == UCS_OK &&
	            (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
	char *text = printed(context);
	ucp_cleanup(context);
	if (text == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the list of UCX's devices");
	read_devices(text);
	free(text);
	for (int i = 0; i < list.count; i++) {
		net_device *d = &list.devices[i];
		ask_system(d, i);
		d->cuda = cuda ? net_gpudirect(d->rdma, "/sys") : 0;
		net_info("NET/ddpucx: device %d is %s (%s), %d Mbit/s%s%s%s", i, d->name, d->transport, d->speed_mbps,
		         d->path[0] != '\0' ? ", " : "", d->path, d->cuda == 0 ? "" :
		         (d->cuda & NET_CUDA) != 0 ? ", takes CUDA memory" : ", takes CUDA memory that is a dmabuf");
	}
	return DDP_OK;
}

ddp_status net_devices_find(void)
{
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&list.lock);
	if (!list.found)
		status = ask_ucx();
	list.found = status == DDP_OK;
	pthread_mutex_unlock(&list.lock);
	return status;
}

int net_devices_count(void)
{
	pthread_mutex_lock(&list.lock);
	int count = list.found ? list.count : 0;
	pthread_mutex_unlock(&list.lock);
	return count;
}

const net_device *net_device_at(int index)
{
	return index >= 0 && index < net_devices_count() ? &list.devices[index] : NULL;
}
