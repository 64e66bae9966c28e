/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/links.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	TAG_WORD = 1,
	TAG_BULK = 2,
	TAG_DONE = 3,
	PINGS_LEAST = 4,         /* however long they take; */
	PINGS = 12,              /* in twice the time of the measurement; */
	PINGS_MOST = 60,         /* in a quarter of it */
	BULKS = 4,               /* of which the first one only tells how large the others are to be */
	BULK_FIRST = 64 << 10,
	BULK_MOST = 8 << 20,
};

static const double BULK_SECONDS = 3e-3;

struct preflight_lines {
	ddp_comm *comm;
	int self;
	char *out, *in; /* of BULK_MOST bytes */
};

/* By a word the leader, the node with the lower number, tells its peer what to do next; the peer answers by another. */
struct word {
	int64_t bytes;   /* to be exchanged next; 0: another word comes; below 0: the end */
	double clock;    /* of the peer */
	double waited;   /* at the end, of the peer: as in struct preflight_link */
};

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds for which the thread could run and got no processor; 0: the kernel does not tell. */
static double waited_by(const char *thread)
{
	char path[64], text[128];
	unsigned long long waited = 0;
	ssize_t got = -1;
	int file;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/schedstat", thread);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		got = read(file, text, sizeof(text) - 1);
		close(file);
	}
	text[got > 0 ? got : 0] = '\0';
	return sscanf(text, "%*u %llu", &waited) == 1 ? (double)waited * 1e-9 : 0;
}

/* All threads of the process together: a thread of libddp's may move the messages. */
static double waited(void)
{
	DIR *threads = opendir("/proc/self/task");
	struct dirent *entry;
	double sum = 0;

	while (threads != NULL && (entry = readdir(threads)) != NULL)
		if (isdigit((unsigned char)entry->d_name[0]))
			sum += waited_by(entry->d_name);
	if (threads != NULL)
		closedir(threads);
	return sum;
}

/* A measurement begins with these values of the clock and of the kernel's count. */
struct span {
	double begin, waited;
};

static struct span begin_span(void)
{
	return (struct span){ now(CLOCK_MONOTONIC), waited() };
}

static double waited_since(const struct span *span)
{
	double seconds = now(CLOCK_MONOTONIC) - span->begin;

	return seconds > 0 ? (waited() - span->waited) / seconds : 0;
}

struct preflight_lines *preflight_lines_open(ddp_comm *links)
{
	struct preflight_lines *lines = calloc(1, sizeof(*lines));

	if (lines == NULL)
		return NULL;
	lines->comm = links;
	lines->self = ddp_comm_rank(links);
	lines->out = malloc(BULK_MOST);
	lines->in = malloc(BULK_MOST);
	if (lines->out == NULL || lines->in == NULL) {
		preflight_lines_close(lines);
		return NULL;
	}
	memset(lines->out, 1, BULK_MOST);
	memset(lines->in, 0, BULK_MOST);
	return lines;
}

void preflight_lines_close(struct preflight_lines *lines)
{
	if (lines == NULL)
		return;
	free(lines->out);
	free(lines->in);
	free(lines);
}

/* Both directions at once, as ranks use a link in a collective. */
static ddp_status exchange(struct preflight_lines *lines, int peer, int64_t bytes)
{
	const ddp_operation send = { .kind = DDP_SEND, .send = lines->out, .count = (size_t)bytes, .type = DDP_U8,
		                     .root = peer, .tag = TAG_BULK };
	const ddp_operation recv = { .kind = DDP_RECV, .recv = lines->in, .count = (size_t)bytes, .type = DDP_U8, .root = peer,
		                     .tag = TAG_BULK };
	ddp_request *out, *in;
	ddp_status status, second;

	if ((status = ddp_issue(lines->comm, &recv, &in)) != DDP_OK)
		return status;
	if ((status = ddp_issue(lines->comm, &send, &out)) != DDP_OK) {
		ddp_request_free(in);
		return status;
	}
	second = ddp_wait(out);
	status = ddp_wait(in);
	return status != DDP_OK ? status : second;
}

/* One word to the peer and one back. */
static ddp_status ping(struct preflight_lines *lines, int peer, int64_t bytes, struct preflight_link *link)
{
	struct word word = { .bytes = bytes };
	double begin = now(CLOCK_MONOTONIC), clock = now(CLOCK_REALTIME), time;
	ddp_status status = ddp_send(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);

	if (status == DDP_OK)
		status = ddp_recv(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
	time = now(CLOCK_MONOTONIC) - begin;
	if (status == DDP_OK && (link->latency <= 0 || time / 2 < link->latency)) {
		link->latency = time / 2;
		link->offset = word.clock - (clock + time / 2);
		link->doubt = time / 2;
	}
	link->waited = word.waited;
	return status;
}

static int64_t bulk_for(double seconds)
{
	int64_t bytes = BULK_FIRST;

	while (bytes < BULK_MOST && seconds < BULK_SECONDS / 2) {
		bytes *= 2;
		seconds *= 2;
	}
	return bytes;
}

static bool wants_ping(int done, double seconds, double limit)
{
	return done < PINGS_LEAST || (done < PINGS && seconds < 2 * limit) || (done < PINGS_MOST && seconds < limit / 4);
}

static ddp_status lead_pings(struct preflight_lines *lines, int peer, double limit, struct preflight_link *link)
{
	struct preflight_link unused = *link;
	double begin = now(CLOCK_MONOTONIC);
	ddp_status status = ping(lines, peer, 0, &unused); /* it may open a connection */

	for (int i = 0; status == DDP_OK && wants_ping(i, now(CLOCK_MONOTONIC) - begin, limit); i++)
		status = ping(lines, peer, 0, link);
	return status;
}

/* The first one is too short to tell: buffers on the way may take all of it. */
static ddp_status lead_bulks(struct preflight_lines *lines, int peer, double end, struct preflight_link *link)
{
	struct preflight_link unused = *link;
	int64_t bytes = BULK_FIRST;
	ddp_status status = DDP_OK;

	for (int i = 0; status == DDP_OK && i < BULKS && (i < 2 || now(CLOCK_MONOTONIC) < end); i++) {
		double time;
		char done;
		status = ping(lines, peer, bytes, &unused);
		time = now(CLOCK_MONOTONIC);
		if (status == DDP_OK)
			status = exchange(lines, peer, bytes);
		/* A send is complete before its bytes have arrived, so the peer says when it has them. */
		if (status == DDP_OK)
			status = ddp_recv(lines->comm, &done, sizeof(done), DDP_U8, peer, TAG_DONE);
		time = now(CLOCK_MONOTONIC) - time;
		if (i == 0)
			bytes = bulk_for(time);
		else if (status == DDP_OK && (double)bytes / time > link->bandwidth)
			link->bandwidth = (double)bytes / time;
	}
	return status;
}

static ddp_status lead(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	const struct span span = begin_span();
	double limit = ms * 1e-3, end = span.begin + limit, own;
	struct preflight_link last = *link;
	ddp_status status = lead_pings(lines, peer, limit, link);

	if (status == DDP_OK)
		status = lead_bulks(lines, peer, end, link);
	own = waited_since(&span);
	if (status == DDP_OK)
		status = ping(lines, peer, -1, &last);
	link->waited = own > last.waited ? own : last.waited;
	return status;
}

static ddp_status follow(struct preflight_lines *lines, int peer)
{
	const struct span span = begin_span();
	struct word word = { 0, 0, 0 };
	const char done = 1;
	ddp_status status = DDP_OK;

	while (status == DDP_OK && word.bytes >= 0) {
		status = ddp_recv(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		word.clock = now(CLOCK_REALTIME);
		if (word.bytes < 0)
			word.waited = waited_since(&span);
		if (status == DDP_OK)
			status = ddp_send(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		if (status == DDP_OK && word.bytes > 0)
			status = exchange(lines, peer, word.bytes < BULK_MOST ? word.bytes : BULK_MOST);
		if (status == DDP_OK && word.bytes > 0)
			status = ddp_send(lines->comm, &done, sizeof(done), DDP_U8, peer, TAG_DONE);
	}
	return status;
}

ddp_status preflight_lines_measure(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	bool leads = lines->self < peer;

	*link = (struct preflight_link){ .a = leads ? lines->self : peer, .b = leads ? peer : lines->self };
	return leads ? lead(lines, peer, ms, link) : follow(lines, peer);
}
