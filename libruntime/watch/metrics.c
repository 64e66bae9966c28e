/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "base/log.h"
#include "base/path.h"
#include "base/signals.h"
#include "base/walk.h"

enum { LINE_BYTES_MAX = 2048 };

struct ddp_metrics {
	int fd;       /* -1 after a failure */
	bool restarted;
	bool begun;   /* this run has written a line */
	bool skipped; /* a line was left out, and that was told */
	char *path;   /* from the root */
};

static ddp_status open_file(const char *path, int *fd)
{
	return ddp_walk_open("the metrics file", path, O_WRONLY | O_CREAT | O_APPEND, fd);
}

static void metrics_free(ddp_metrics *metrics)
{
	free(metrics->path);
	free(metrics);
}

ddp_status ddp_metrics_open(const char *path, bool restarted, ddp_metrics **metrics)
{
	ddp_metrics *made = calloc(1, sizeof(*made));

	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the metrics");
	made->fd = -1;
	made->restarted = restarted;
	ddp_status status = ddp_path_absolute("metrics file", path, &made->path);
	if (status == DDP_OK)
		status = ddp_walk_make_parents("the folder of the metrics file", made->path);
	if (status == DDP_OK)
		status = open_file(made->path, &made->fd);
	if (status != DDP_OK) {
		metrics_free(made);
		return status;
	}
	*metrics = made;
	return DDP_OK;
}

void ddp_metrics_close(ddp_metrics *metrics)
{
	if (metrics == NULL)
		return;
	if (metrics->fd >= 0 && close(metrics->fd) != 0)
		ddp_log(DDP_LOG_WARN, "closing the metrics file \"%s\": %s", metrics->path,
		        ddp_reason(errno));
	metrics_free(metrics);
}

/* JSON knows neither infinity nor NaN. */
static json_t *number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *step_object(const ddp_step_stats *stats)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	double rate = stats->seconds > 0 ? stats->weight / stats->seconds : 0;
	return json_pack("{s:f, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
	                 "time", (double)now.tv_sec + (double)now.tv_nsec * 1e-9,
	                 "step", (json_int_t)stats->step,
	                 "loss", number(stats->loss),
	                 "weight", number(stats->weight),
	                 "units_per_second", number(rate),
	                 "grad_norm", number(stats->grad_norm),
	                 "learning_rate", number(stats->learning_rate),
	                 "seconds", number(stats->seconds),
	                 "data_seconds", stats->data_seconds,
	                 "forward_seconds", stats->forward_seconds,
	                 "backward_seconds", stats->backward_seconds,
	                 "exposed_seconds", stats->exposed_seconds,
	                 "communication_seconds", stats->communication_seconds,
	                 "optimizer_seconds", stats->optimizer_seconds,
	                 "checkpoint_seconds", stats->checkpoint_seconds,
	                 "evaluation_seconds", stats->evaluation_seconds,
	                 "other_seconds", stats->other_seconds);
}

/* Renames the file to the first free name of PATH.1, PATH.2, ...; false with errno. */
static bool rename_to_free_name(const char *path)
{
	struct stat found;
	char *other = NULL;

	for (unsigned n = 1; n != 0; n++) {
		if (asprintf(&other, "%s.%u", path, n) < 0) {
			errno = ENOMEM;
			return false;
		}
		if (lstat(other, &found) != 0)
			break;
		free(other);
		other = NULL;
	}
	bool renamed = other != NULL && errno == ENOENT && rename(path, other) == 0;
	if (renamed)
		ddp_log(DDP_LOG_INFO, "the metrics of an earlier run are now in \"%s\"", other);
	int reason = errno;
	free(other);
	errno = reason;
	return renamed;
}

/* Two runs in one file would be read as one. Pipes and devices hold no earlier run. */
static void set_earlier_run_aside(ddp_metrics *metrics)
{
	struct stat file, named;
	int fd;

	if (fstat(metrics->fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size == 0)
		return;
	/* Behind a symbolic link, as /dev/stdout is, the file's own name is not known. */
	if (lstat(metrics->path, &named) != 0 || named.st_ino != file.st_ino || named.st_dev != file.st_dev) {
		ddp_log(DDP_LOG_INFO, "metrics of this run follow what is in \"%s\": a link keeps its file", metrics->path);
		return;
	}
	if (!rename_to_free_name(metrics->path)) {
		ddp_log(DDP_LOG_WARN, "metrics of this run follow an earlier run's in \"%s\": that cannot be "
		        "renamed (%s)", metrics->path, ddp_reason(errno));
		return;
	}
	if (open_file(metrics->path, &fd) != DDP_OK) {
		ddp_log(DDP_LOG_WARN, "metrics of this run follow an earlier run's: %s", ddp_last_error());
		return;
	}
	close(metrics->fd);
	metrics->fd = fd;
}

void ddp_metrics_step(ddp_metrics *metrics, const ddp_step_stats *stats)
{
	char line[LINE_BYTES_MAX];

	if (metrics->fd < 0)
		return;
	if (!metrics->begun && stats->step == 1 && !metrics->restarted)
		set_earlier_run_aside(metrics);
	metrics->begun = true;
	json_t *object = step_object(stats);
	if (object == NULL) {
		ddp_log(DDP_LOG_WARN, "no memory for the metrics of step %lld", (long long)stats->step);
		return;
	}
	size_t bytes = json_dumpb(object, line, sizeof(line) - 1,
	                          JSON_COMPACT | JSON_REAL_PRECISION(16));
	json_decref(object);
	if (bytes == 0 || bytes > sizeof(line) - 1)
		return;
	line[bytes++] = '\n';

	const ssize_t written = ddp_write(metrics->fd, line, bytes);
	if (written == (ssize_t)bytes)
		return;
	if (written < 0 && errno == EAGAIN) {
		if (!metrics->skipped)
			ddp_log(DDP_LOG_WARN, "metrics: step %lld and others are left out, since \"%s\" is full and "
			        "its reader does not read", (long long)stats->step, metrics->path);
		metrics->skipped = true;
		return;
	}
	ddp_log(DDP_LOG_WARN, "metrics end at step %lld: cannot write to \"%s\": %s",
	        (long long)stats->step, metrics->path,
	        written < 0 ? ddp_reason(errno) : "no space for a whole line");
	close(metrics->fd);
	metrics->fd = -1;
}
