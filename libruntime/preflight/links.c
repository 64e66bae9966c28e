/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/links.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	TAG_WORD = 1,
	TAG_BULK = 2,
	PINGS = 12,              /* at least; more in a quarter of the time */
	PINGS_MOST = 60,
	BULKS = 3,               /* at least */
	BULK_FIRST = 64 << 10,
	BULK_MOST = 8 << 20,
};

static const double BULK_SECONDS = 3e-3;

struct preflight_lines {
	ddp_comm *comm;
	int self;
	char *out, *in; /* of BULK_MOST bytes */
};

/* What the leader, the node with the lower number, tells its peer to do next, and what the peer answers. */
struct word {
	int64_t bytes;   /* to be exchanged next; 0: another word comes; below 0: the end */
	double clock;    /* of the peer */
};

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
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
	const ddp_operation send = { .kind = DDP_SEND, .send = lines->out, .count = (size_t)bytes, .type = DDP_U8, .root = peer,
		                     .tag = TAG_BULK };
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
	struct word word = { bytes, 0 };
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

static ddp_status lead(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	double begin = now(CLOCK_MONOTONIC), end = begin + ms * 1e-3, time = 0;
	int64_t bytes = BULK_FIRST;
	struct preflight_link unused = *link;
	ddp_status status = ping(lines, peer, 0, &unused); /* it may open a connection */

	for (int i = 0; status == DDP_OK && i < PINGS_MOST && (i < PINGS || now(CLOCK_MONOTONIC) < begin + ms * 0.25e-3); i++)
		status = ping(lines, peer, 0, link);
	/* The first exchange tells how large the others are to be. */
	for (int i = 0; status == DDP_OK && i <= BULKS; i++) {
		if (i > 1 && now(CLOCK_MONOTONIC) > end)
			break;
		status = ping(lines, peer, bytes, link);
		time = now(CLOCK_MONOTONIC);
		if (status == DDP_OK)
			status = exchange(lines, peer, bytes);
		time = now(CLOCK_MONOTONIC) - time;
		if (status == DDP_OK && (double)bytes / time > link->bandwidth)
			link->bandwidth = (double)bytes / time;
		bytes = i == 0 ? bulk_for(time) : bytes;
	}
	if (status == DDP_OK)
		status = ping(lines, peer, -1, &unused);
	return status;
}

static ddp_status follow(struct preflight_lines *lines, int peer)
{
	struct word word = { 0, 0 };
	ddp_status status = DDP_OK;

	while (status == DDP_OK && word.bytes >= 0) {
		status = ddp_recv(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		word.clock = now(CLOCK_REALTIME);
		if (status == DDP_OK)
			status = ddp_send(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		if (status == DDP_OK && word.bytes > 0)
			status = exchange(lines, peer, word.bytes < BULK_MOST ? word.bytes : BULK_MOST);
	}
	return status;
}

ddp_status preflight_lines_measure(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	bool leads = lines->self < peer;

	*link = (struct preflight_link){ .a = leads ? lines->self : peer, .b = leads ? peer : lines->self };
	return leads ? lead(lines, peer, ms, link) : follow(lines, peer);
}
