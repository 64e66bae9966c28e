/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tcp_ranks.h"

#include <arpa/inet.h>
#include <endian.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/support/test.h"
#include "wireup/frame.h"
#include "wireup/node_table.h"

struct rank ranks[WORLD_MAX];
struct outcome outcomes[WORLD_MAX];
static int tests_begun;

void sleep_ms(long ms)
{
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

int begin(void **state)
{
	tests_begun++;
	return 0;
}

void arrange(int world)
{
	memset(ranks, 0, sizeof(ranks));
	for (int r = 0; r < world; r++) {
		struct rank *rank = &ranks[r];
		rank->job = (ddp_job){ .rank = r, .world_size = world, .local_rank = r,
		                       .local_world_size = world, .nnodes = 1,
		                       .master_port = 29500 + tests_begun };
		snprintf(rank->job.hostname, sizeof(rank->job.hostname), "node%d", r);
		snprintf(rank->job.master_addr, sizeof(rank->job.master_addr), "127.%d.%d.%d",
		         getpid() >> 15 & 127, getpid() >> 7 & 255, (getpid() & 127) + 1);
		rank->key.present = true;
		memset(rank->key.bytes, 7, sizeof(rank->key.bytes));
		rank->timeout_ms = LONG_MS;
		rank->blob_bytes = 100;
		rank->rounds = 1;
	}
}

static unsigned char pattern(int rank, int round, size_t i)
{
	return (unsigned char)((size_t)rank * 31 + (size_t)round * 7 + i * 13 + (i >> 8));
}

/* Blobs differ in size from rank to rank. */
static size_t size_of(const struct rank *rank, int r)
{
	return rank->blob_bytes > (size_t)r ? rank->blob_bytes - (size_t)r : rank->blob_bytes;
}

static unsigned char *blob_of(const struct rank *rank, int round)
{
	const size_t bytes = size_of(rank, rank->job.rank);
	unsigned char *blob = malloc(bytes + 1);

	for (size_t i = 0; i < bytes; i++)
		blob[i] = pattern(rank->job.rank, round, i);
	return blob;
}

static ddp_status one_round(const struct rank *rank, ddp_wireup *wireup, int round)
{
	uint64_t deadline_ns = ddp_now_ns() + (uint64_t)rank->timeout_ms * 1000000;
	void *blobs[WORLD_MAX];
	size_t sizes[WORLD_MAX], bytes = size_of(rank, rank->job.rank);
	unsigned char *blob = blob_of(rank, round);
	ddp_status status;

	status = wireup->ops->exchange(wireup, blob, bytes, deadline_ns, blobs, sizes);
	free(blob);
	if (status != DDP_OK)
		return status;
	for (int r = 0; r < rank->job.world_size; r++) {
		const unsigned char *got = blobs[r];
		if (sizes[r] != size_of(rank, r))
			status = ddp_fail(DDP_ERR_INTERNAL, "test: blob of rank %d has %zu bytes", r, sizes[r]);
		for (size_t i = 0; i < sizes[r] && status == DDP_OK; i++)
			if (got[i] != pattern(r, round, i))
				status = ddp_fail(DDP_ERR_INTERNAL, "test: blob of rank %d differs at %zu", r, i);
	}
	ddp_blobs_free(blobs, rank->job.world_size);
	return status;
}

static void die(int number)
{
	kill(getpid(), SIGKILL);
}

static void take(int fd, void *to, size_t bytes)
{
	if (bytes > 0 && recv(fd, to, bytes, MSG_WAITALL) != (ssize_t)bytes)
		_exit(0); /* rank 0 has given up */
}

static void give(int fd, enum ddp_frame_kind kind, const void *payload, size_t bytes)
{
	unsigned char header[DDP_FRAME_HEADER_BYTES];

	ddp_frame_header(header, kind, 1, bytes);
	if (send(fd, header, sizeof(header), MSG_NOSIGNAL) != (ssize_t)sizeof(header) ||
	    send(fd, payload, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		_exit(0);
}

static int prove_key(const struct rank *rank)
{
	int fd = connect_raw();
	const ddp_ends ends = ddp_ends_of(fd, false);
	ddp_challenge challenge;
	ddp_verdict verdict;
	ddp_hello hello;

	take(fd, &challenge, sizeof(challenge));
	assert_int_equal(ddp_hello_make(&rank->key, &challenge, &ends, &rank->job, &hello), DDP_OK);
	assert_int_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	take(fd, &verdict, sizeof(verdict));
	return fd;
}

/* Speaks as a rank does, in its first exchange, until a frame comes. */
static ddp_status speak_until(const struct rank *rank)
{
	ddp_node_table table = { .fd = -1 };
	struct { uint32_t kind, sequence; uint64_t bytes; } header;
	unsigned char payload[DDP_FRAME_SMALL_MAX];
	const unsigned char yes = 1;
	unsigned char *blob = blob_of(rank, 0);
	const int fd = prove_key(rank);

	give(fd, DDP_FRAME_BLOB, blob, size_of(rank, rank->job.rank));
	free(blob);
	for (;;) {
		take(fd, &header, sizeof(header));
		if (le32toh(header.kind) == (uint32_t)rank->leaves_at)
			break;
		take(fd, payload, (size_t)le64toh(header.bytes));
		if (le32toh(header.kind) == DDP_FRAME_ASK) {
			ddp_node_table_offer(&table);
			give(fd, DDP_FRAME_OFFER, &table.offer, sizeof(table.offer));
		} else {
			give(fd, DDP_FRAME_DONE, &yes, 1);
		}
	}
	if (rank->hangs)
		sleep_ms(4 * SHORT_MS);
	return DDP_OK;
}

static uint64_t sent_bytes(void)
{
	uint64_t bytes = 0;

	for (int fd = 3; fd < 256; fd++) {
		struct tcp_info info = { 0 };
		socklen_t length = sizeof(info);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
			bytes += info.tcpi_bytes_acked;
	}
	return bytes;
}

static ddp_status be_rank(const struct rank *rank, uint64_t *sent)
{
	ddp_wireup *wireup;

	const struct itimerval death = { .it_value.tv_usec = rank->dies_us };

	if (rank->node != NULL)
		setenv("DDP_LOCALITY", rank->node, 1);
	if (rank->file_bytes > 0) {
		struct rlimit limit = { (rlim_t)rank->file_bytes, (rlim_t)rank->file_bytes };
		setrlimit(RLIMIT_FSIZE, &limit);
	}
	if (rank->leaves_at != 0)
		return speak_until(rank);
	sleep_ms(rank->delay_ms);
	if (rank->run_id != NULL)
		setenv("TORCHELASTIC_RUN_ID", rank->run_id, 1);
	signal(SIGALRM, die);
	setitimer(ITIMER_REAL, &death, NULL);
	if (rank->descriptors > 0) {
		struct rlimit limit = { rank->descriptors, rank->descriptors };
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	ddp_status status = ddp_wireup_open(&rank->job, &rank->key, "tcp",
	                                    ddp_now_ns() + (uint64_t)rank->timeout_ms * 1000000, &wireup);
	if (status != DDP_OK)
		return status;
	if (rank->idles)
		sleep_ms(2 * SHORT_MS);
	for (int i = 0; i < rank->rounds && status == DDP_OK && !rank->idles; i++)
		status = one_round(rank, wireup, i);
	*sent = sent_bytes();
	wireup->ops->close(wireup);
	return status;
}

static void join(int r, struct outcome *outcome)
{
	while (ranks[r].awaits != NULL && !atomic_load(ranks[r].awaits))
		sleep_ms(1);
	const uint64_t start_ns = ddp_now_ns();
	outcome->status = be_rank(&ranks[r], &outcome->sent_bytes);
	outcome->about = ddp_error_rank();
	outcome->seconds = ddp_seconds_since(start_ns);
	snprintf(outcome->message, sizeof(outcome->message), "%s", ddp_last_error());
}

/* The rank is the child of a child, which ends before it. */
static void join_as_orphan(int r, struct outcome *outcome)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	if (fork() == 0) {
		if (fork() == 0)
			join(r, outcome);
		else
			sleep_ms(ranks[r].agent_ends_ms);
		_exit(0);
	}
	while (wait(NULL) >= 0)
		continue;
}

static int report(int r, void *argument)
{
	struct outcome *outcome = (struct outcome *)argument + r;

	if (ranks[r].absent)
		return 0;
	if (ranks[r].agent_ends_ms > 0)
		join_as_orphan(r, outcome);
	else
		join(r, outcome);
	return 0;
}

void run(int count)
{
	struct outcome *shared = test_share(sizeof(outcomes));
	test_ranks all = { .count = count, .body = report, .argument = shared };

	for (int r = 0; r < count; r++)
		all.expect_deaths |= ranks[r].dies_us > 0;
	assert_int_equal(test_ranks_run(&all), 0); /* also: nothing leaked */
	memcpy(outcomes, shared, sizeof(outcomes));
	test_unshare(shared, sizeof(outcomes));
}

void expect(int rank, ddp_status status, const char *words)
{
	if (outcomes[rank].status != status || strstr(outcomes[rank].message, words) == NULL)
		fail_msg("rank %d: %s \"%s\", expected %s \"...%s...\"", rank,
		         ddp_status_name(outcomes[rank].status), outcomes[rank].message,
		         ddp_status_name(status), words);
}

void all_are_well(int count)
{
	for (int r = 0; r < count; r++)
		if (outcomes[r].status != DDP_OK)
			fail_msg("rank %d: %s", r, outcomes[r].message);
}

int connect_raw(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
	                               .sin_port = htons((uint16_t)ranks[0].job.master_port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, ranks[0].job.master_addr, &address.sin_addr);
	for (int i = 0; i < 1000; i++) {
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
			return fd;
		sleep_ms(10);
	}
	return -1;
}
