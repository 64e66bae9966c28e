/* SPDX-License-Identifier: Apache-2.0 */
/* netplugin_ranks: two processes that use libnccl-net-ddpucx.so as NCCL does, for the tests of
   it. Each runs a body with the board that they share. */
#pragma once

#include <stdatomic.h>

#include "tests/support/nccl_driver.h"

#define KEY "step:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

enum { RECEIVER, SENDER, RANKS, CONNECTIONS = 4, ROUNDS = 2, LONG = 200000 };

/* Shared by the ranks. */
typedef struct board {
	const char *transports;
	int version;
	atomic_int ready[CONNECTIONS * ROUNDS]; /* the handle is written down */
	unsigned char handle[CONNECTIONS * ROUNDS][NET_HANDLE_BYTES];
	int victim;            /* the rank that dies or closes first */
	atomic_int stage;      /* of the test's own */
	atomic_int pids[RANKS];
	atomic_size_t length;  /* of the warnings */
	char heard[1 << 14];
} board;

extern board *shared; /* by test_share(), in the main() of these tests */

/* What the plugin told of the connection that this process closed last. */
extern char last_closed[1024];
/* A net_logger: keeps warnings on the board. */
void hear(int level, unsigned long about, const char *file, int line, const char *format, ...);
void nap(void);
void reach(int stage);
void await(int stage);

/* ---- as NCCL does --------------------------------------------------------------------------- */

/* The first of a rank. */
void set_up(nccl_driver *d, const board *b, int rank);
/* By handle i of the board. */
void *receive_from(const nccl_driver *d, int i);
void *send_to(const nccl_driver *d, int i);
/* The rank's end of connection 0. */
void *open_one(const nccl_driver *d, int rank);
void close_one(const nccl_driver *d, int rank, void *connection);
/* Fails unless the connection to a receiver that this process closed last went by transports of the board alone. */
void check_transports(void);

void *begin_receive(const nccl_driver *d, void *receiver, void *data, size_t bytes, int tag, void *memory);
void *begin_send(const nccl_driver *d, void *sender, void *data, size_t bytes, int tag, void *memory);
void finish(const nccl_driver *d, void *request, int *sizes);
/* Of what was received; only CUDA memory that is not empty has something to be waited for. */
void flush(const nccl_driver *d, void *receiver, void *data, int bytes, void *memory);

/* ---- messages ------------------------------------------------------------------------------- */

/* What message i of so many bytes holds. */
void fill(unsigned char *data, size_t bytes, int i);
bool holds(const unsigned char *data, size_t bytes, int i);
/* Messages of all lengths, of none and of some that UCX sends another way, with a few
   that are longer than what comes before. */
size_t length_of(int i);

/* Where a process has what it sends and receives. */
typedef struct place {
	int memory; /* NET_HOST or NET_CUDA */
	void *(*take)(size_t bytes);
	void (*give_back)(void *data);
	void (*write)(void *to, const void *from, size_t bytes); /* from the host's memory */
	void (*read)(void *to, const void *from, size_t bytes);  /* into it */
} place;

extern const place on_host;
extern const place *messages_at; /* of this process: `on_host` if it does not choose */

/* As many under way as NCCL has; receives are longer than what is sent. CUDA memory is flushed
   before it is read. */
void stream_out(const nccl_driver *d, void *sender, int messages);
void stream_in(const nccl_driver *d, void *receiver, int messages);

/* ---- what runs them --------------------------------------------------------------------------- */

extern const char over_tcp[], over_memory[];

int run_board(int (*body)(int, void *), int version, const char *transports);
int run_with_victim(int (*body)(int, void *), const char *transports, int victim, bool dies);

/* Said once, by name. */
void heard_once(const char *words);
