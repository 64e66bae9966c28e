/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/report.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preflight/statistics.h"

enum { INDENT = 6, WIDTH_LEAST = 40 };

/* ---- for people ---- */

/* Words of one sentence, in lines of the terminal's width. */
static void wrap(FILE *out, const char *head, const char *text, int width, const char *begin, const char *end)
{
	int column = (int)strlen(head);

	fprintf(out, "%s%s%s", begin, head, end);
	while (*text != '\0') {
		int word = (int)strcspn(text, " ");
		if (column + 1 + word > width && column > INDENT) {
			fprintf(out, "\n%*s", INDENT - 1, "");
			column = INDENT - 1;
		}
		fprintf(out, " %.*s", word, text);
		column += 1 + word;
		text += word + strspn(text + word, " ");
	}
	fprintf(out, "\n");
}

struct row {
	double lowest, usual, highest;
	int lowest_at, highest_at;
};

static struct row row_of(const double *values, int count)
{
	struct row row = { 0, preflight_median(values, count), 0, -1, -1 };

	for (int i = 0; i < count; i++) {
		if (values[i] <= 0)
			continue;
		if (row.lowest_at < 0 || values[i] < row.lowest) {
			row.lowest = values[i];
			row.lowest_at = i;
		}
		if (values[i] > row.highest) {
			row.highest = values[i];
			row.highest_at = i;
		}
	}
	return row;
}

static void print_ranks(FILE *out, const struct preflight_survey *s, double *values)
{
	static const char *const ways[PREFLIGHT_WAYS] = { "all at once", "alone" };

	for (int work = 0; work < PREFLIGHT_WORKS; work++) {
		for (int way = 0; s->works[work] && way < PREFLIGHT_WAYS; way++) {
			char name[64], lowest[96];
			struct row row;
			for (int r = 0; r < s->ranks; r++)
				values[r] = s->figures[r].of[way][work].rate;
			row = row_of(values, s->ranks);
			if (row.lowest_at < 0)
				continue;
			snprintf(name, sizeof(name), "%s, %s", preflight_work_name((enum preflight_work)work), ways[way]);
			snprintf(lowest, sizeof(lowest), "rank %d on %.60s", row.lowest_at, s->names[s->node[row.lowest_at]]);
			fprintf(out, "  %-38s %9.4g %9.4g %9.4g %-8s %s\n", name, row.lowest * 1e-9, row.usual * 1e-9,
			        row.highest * 1e-9, preflight_work_unit((enum preflight_work)work), lowest);
		}
	}
}

static void print_links(FILE *out, const struct preflight_survey *s, double *values)
{
	struct row row;

	if (s->link_count == 0)
		return;
	for (int i = 0; i < s->link_count; i++)
		values[i] = s->link[i].bandwidth;
	row = row_of(values, s->link_count);
	if (row.lowest_at < 0)
		return;
	fprintf(out, "  %-38s %9.4g %9.4g %9.4g %-8s %.60s - %.60s\n", "links, bandwidth in each direction",
	        row.lowest * 1e-6, row.usual * 1e-6, row.highest * 1e-6, "MB/s", s->names[s->link[row.lowest_at].a],
	        s->names[s->link[row.lowest_at].b]);
	for (int i = 0; i < s->link_count; i++)
		values[i] = s->link[i].latency;
	row = row_of(values, s->link_count);
	fprintf(out, "  %-38s %9.4g %9.4g %9.4g %-8s\n", "links, latency", row.lowest * 1e6, row.usual * 1e6,
	        row.highest * 1e6, "us");
}

static void print_findings(FILE *out, const struct preflight_findings *findings, int width, bool colour)
{
	for (int i = 0; i < findings->count; i++)
		if (findings->item[i].odd)
			wrap(out, "ODD: ", findings->item[i].text, width, colour ? "\033[1;31m" : "", colour ? "\033[0m" : "");
	for (int i = 0; i < findings->count; i++)
		if (!findings->item[i].odd)
			wrap(out, "note:", findings->item[i].text, width, "", "");
	if (findings->odd == 0)
		fprintf(out, "%snothing is odd%s\n", colour ? "\033[32m" : "", colour ? "\033[0m" : "");
}

void preflight_report(FILE *out, const struct preflight_survey *s, const struct preflight_findings *findings,
                      double seconds, int width, bool colour)
{
	int count = s->ranks + s->link_count;
	double *values = malloc((size_t)(count + 1) * sizeof(*values));

	if (width < WIDTH_LEAST)
		width = WIDTH_LEAST;
	fprintf(out, "ddp-preflight: %d rank%s on %d node%s, %.1f s\n", s->ranks, s->ranks == 1 ? "" : "s", s->nodes,
	        s->nodes == 1 ? "" : "s", seconds);
	fprintf(out, "  %-38s %9s %9s %9s %-8s %s\n", "", "lowest", "median", "highest", "", "the lowest is of");
	if (values != NULL) {
		print_ranks(out, s, values);
		print_links(out, s, values);
	}
	free(values);
	print_findings(out, findings, width, colour);
	fflush(out);
}

/* ---- files ---- */

/* Returns a duplicate of standard output or error, with its offset, if that goes to the file of `info`; otherwise -1.
   */
static int open_standard(const struct stat *info)
{
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
		struct stat own;
		if (fstat(fd, &own) == 0 && own.st_dev == info->st_dev && own.st_ino == info->st_ino)
			return fcntl(fd, F_DUPFD_CLOEXEC, 0);
	}
	return -1;
}

/* The open of a pipe that nobody reads fails rather than waits. */
static int open_pipe(const char *path)
{
	const int file = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);

	if (file >= 0)
		(void)fcntl(file, F_SETFL, 0);
	return file;
}

/* Makes a file beside the one of this path, with the rights that a new file has. `target` becomes the path without
   symbolic links. */
static int make_beside(const char *path, char target[PATH_MAX], char made[PATH_MAX])
{
	const mode_t mask = umask(077);
	int file = -1;

	umask(mask);
	if (realpath(path, target) == NULL)
		snprintf(target, PATH_MAX, "%s", path);
	if (strlen(path) >= PATH_MAX || snprintf(made, PATH_MAX, "%s.XXXXXX", target) >= PATH_MAX)
		errno = ENAMETOOLONG;
	else
		file = mkostemp(made, O_CLOEXEC);
	if (file >= 0)
		(void)fchmod(file, 0644 & ~mask);
	return file;
}

bool preflight_output_open(struct preflight_output *output, const char **why)
{
	char made[PATH_MAX], target[PATH_MAX];
	struct stat info;
	bool refused = false;
	int file = -1;

	output->file = -1;
	errno = ENOENT;
	if (output->path[0] != '\0' && stat(output->path, &info) == 0) {
		file = output->file = open_standard(&info);
		if (file < 0 && !S_ISREG(info.st_mode))
			file = output->file = open_pipe(output->path);
		refused = file < 0 && access(output->path, W_OK) != 0;
	} else {
		info.st_mode = S_IFREG;
	}
	if (file < 0 && !refused && output->path[0] != '\0' && S_ISREG(info.st_mode))
		file = make_beside(output->path, target, made);
	if (file >= 0 && output->file < 0) {
		close(file);
		unlink(made);
	}
	*why = errno == ENOENT ? "there is no such folder: make it, or name another file" : strerror(errno);
	return file >= 0;
}

/* Closes the file, and keeps errno of what failed first. */
static bool write_all(int file, const char *text)
{
	bool done = file >= 0;

	while (done && *text != '\0') {
		const ssize_t written = write(file, text, strlen(text));
		done = written >= 0 || errno == EINTR;
		text += written > 0 ? written : 0;
	}
	const int reason = errno;
	if (file >= 0 && close(file) != 0 && done)
		return false;
	errno = reason;
	return done;
}

bool preflight_output_write(const struct preflight_output *output, const char *text)
{
	char made[PATH_MAX], target[PATH_MAX];

	fflush(stdout);
	if (output->file >= 0)
		return write_all(output->file, text);
	const int file = make_beside(output->path, target, made);
	const bool done = write_all(file, text) && rename(made, target) == 0;
	const int reason = errno;
	if (!done && file >= 0)
		unlink(made);
	errno = reason;
	return done;
}

/* ---- as JSON, and for srun ---- */

static json_t *figure_of(const struct preflight_figure *f)
{
	return json_pack("{s:f, s:f}", "rate", f->rate, "share", f->share);
}

static json_t *rank_of(const struct preflight_survey *s, int rank)
{
	static const char *const works[PREFLIGHT_WORKS] = { "product", "memory", "gpu_product", "gpu_memory" };
	const struct preflight_facts *f = &s->facts[rank];
	json_t *object = json_pack("{s:i, s:s, s:I, s:I, s:I, s:i, s:I}", "rank", rank, "node", f->node_name, "memlock",
	                           (json_int_t)f->memlock, "nofile", (json_int_t)f->nofile, "cpus", (json_int_t)f->cpus,
	                           "threads", (int)f->threads, "numa_nodes", (json_int_t)f->numa);

	if (f->gpu[0] != '\0')
		json_object_set_new(object, "gpu",
		                    json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", f->gpu, "bus", f->gpu_bus, "numa_node",
		                              (json_int_t)f->gpu_numa, "memory_bytes", (json_int_t)f->gpu_memory_bytes, "ecc_errors",
		                              (json_int_t)f->gpu_ecc_errors, "clock_mhz", (json_int_t)f->gpu_clock_mhz));
	for (int work = 0; work < PREFLIGHT_WORKS; work++) {
		if (s->works[work])
			json_object_set_new(object, works[work],
			                    json_pack("{s:o, s:o}", "at_once", figure_of(&s->figures[rank].of[PREFLIGHT_AT_ONCE][work]),
			                              "alone", figure_of(&s->figures[rank].of[PREFLIGHT_ALONE][work])));
	}
	return object;
}

static json_t *node_of(const struct preflight_facts *f)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "name", f->node_name,
	                 "processor", f->processor, "processors", (json_int_t)f->processors, "memory_bytes",
	                 (json_int_t)f->memory_bytes, "kernel", f->kernel, "glibc", f->glibc, "libddp", f->libddp,
	                 "ucx", f->ucx, "driver", f->driver, "nccl", f->nccl, "shm_bytes", (json_int_t)f->shm_bytes,
	                 "shm_free_bytes", (json_int_t)f->shm_free_bytes, "rdma", (int)(f->has_rdma != 0));
}

static json_t *finding_of(const struct preflight_survey *s, const struct preflight_finding *f)
{
	json_t *object = json_pack("{s:s, s:s}", "about", f->about, "text", f->text);

	if (f->node >= 0)
		json_object_set_new(object, "node", json_string(s->names[f->node]));
	if (f->rank >= 0)
		json_object_set_new(object, "rank", json_integer(f->rank));
	if (f->peer >= 0)
		json_object_set_new(object, "peer", json_string(s->names[f->peer]));
	if (f->usual > 0) {
		json_object_set_new(object, "value", json_real(f->value));
		json_object_set_new(object, "usual", json_real(f->usual));
	}
	return object;
}

static json_t *all_of(const struct preflight_survey *s, const struct preflight_findings *findings, double seconds)
{
	json_t *ranks = json_array(), *nodes = json_array(), *links = json_array(), *odd = json_array(), *notes = json_array();

	for (int r = 0; r < s->ranks; r++) {
		json_array_append_new(ranks, rank_of(s, r));
		if (s->facts[r].local_rank == 0)
			json_array_append_new(nodes, node_of(&s->facts[r]));
	}
	for (int i = 0; i < s->link_count; i++)
		json_array_append_new(links, json_pack("{s:s, s:s, s:f, s:f, s:f}", "a", s->names[s->link[i].a], "b",
		                                       s->names[s->link[i].b], "bandwidth", s->link[i].bandwidth,
		                                       "latency", s->link[i].latency, "waited", s->link[i].waited));
	for (int i = 0; i < findings->count; i++)
		json_array_append_new(findings->item[i].odd ? odd : notes, finding_of(s, &findings->item[i]));
	return json_pack("{s:i, s:f, s:b, s:o, s:o, s:o, s:o, s:o}", "preflight", 1, "seconds", seconds, "busy",
	                 (int)preflight_is_busy(&s->people, s->figures), "odd", odd, "notes", notes, "nodes", nodes,
	                 "ranks", ranks, "links", links);
}

bool preflight_report_json(const struct preflight_output *output, const struct preflight_survey *survey,
                           const struct preflight_findings *findings, double seconds)
{
	json_t *all = all_of(survey, findings, seconds);
	char *text = all != NULL ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
	bool done;

	json_decref(all);
	errno = ENOMEM;
	done = text != NULL && preflight_output_write(output, text);
	free(text);
	return done;
}

/* The nodes that are to be left out, separated by commas, and how many they are; the caller frees the text. */
static char *excluded_nodes(const struct preflight_survey *s, const struct preflight_findings *findings, int *count)
{
	bool *excluded = calloc((size_t)s->nodes, sizeof(*excluded));
	size_t room = 2, used = 0;
	char *text;

	*count = 0;
	for (int n = 0; n < s->nodes; n++)
		room += strlen(s->names[n]) + 1;
	text = calloc(1, room);
	if (text != NULL && excluded != NULL)
		preflight_exclude(findings, excluded, s->nodes);
	for (int n = 0; text != NULL && excluded != NULL && n < s->nodes; n++) {
		if (!excluded[n])
			continue;
		used += (size_t)snprintf(text + used, room - used, "%s%s", used > 0 ? "," : "", s->names[n]);
		++*count;
	}
	free(excluded);
	return text;
}

bool preflight_report_exclude(const struct preflight_output *output, const struct preflight_survey *s,
                              const struct preflight_findings *findings)
{
	int count;
	char *text = excluded_nodes(s, findings, &count);
	bool done;

	errno = ENOMEM;
	if (text != NULL && count > 0)
		strcat(text, "\n"); /* there is room for it */
	done = text != NULL && preflight_output_write(output, text);
	free(text);
	return done;
}

bool preflight_report_answer(FILE *out, const struct preflight_survey *s, const struct preflight_findings *findings)
{
	int count;
	char *text = excluded_nodes(s, findings, &count);
	bool done = text != NULL && fprintf(out, "%d %d %s\n", findings->odd, count, text) > 0 && fflush(out) == 0;

	free(text);
	return done;
}
