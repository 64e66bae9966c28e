/* SPDX-License-Identifier: Apache-2.0 */
/* The page in which a rank says what it is doing. A page has slots, and each context of the process
   (ddp_init()) writes one of its own; a program with one context writes the first, and slurm_ddp of Python
   the last that is free. Readers make one description of all slots (spank/wire/progress_page.h). The SPANK plugin makes
   one per task (a memfd that the task inherits; DDP_PROGRESS_FD names it) and
   reads it for the failure report; ddp-status reads it while the task runs.
   The reader may be root and trusts nothing here: it copies the page once,
   checks the magic and bounds every field. Without the plugin the page is
   private memory. */
#pragma once

#include <stdint.h>

#define DDP_PROGRESS_MAGIC 0x31706464u /* "ddp1", little-endian */
#define DDP_PROGRESS_BYTES 4096 /* of a rank's page: */
#define DDP_PROGRESS_SLOTS 8    /* one for each context of the process, */
#define DDP_PROGRESS_SLOT_BYTES (DDP_PROGRESS_BYTES / DDP_PROGRESS_SLOTS)
/* A slot that a context is about to fill has this magic. */
#define DDP_PROGRESS_TAKEN 1u

/* As collective_text with DDP_WAITING_OTHER, in ddp_init(): it ends once all ranks have come. */
#define DDP_PROGRESS_FIRST_EXCHANGE "the first exchange of all ranks"

struct ddp_progress {
	uint32_t magic;
	uint32_t phase;            /* enum ddp_phase, or enum ddp_progress_phase */
	int64_t step;              /* the step under way, from 1 */
	uint64_t updated_ns;       /* CLOCK_MONOTONIC, when the phase began */
	int32_t bucket;            /* last bucket issued in this step, -1: none */
	int32_t buckets;           /* buckets per step */
	uint64_t collective;       /* number of the last collective of all ranks, from 1 */
	char collective_text[64];  /* such as "all_reduce f32[262144] sum"; terminated */
	char error[240];           /* the library's last error, "" if none; terminated */
	/* In an older libddp the error went on here, if it was that long. */
	uint64_t compute_ns;       /* how long the rank has computed in its steps, without waits for other ranks, */
	uint64_t compute_steps;    /* and in how many steps; 0: not told */
	uint32_t status;           /* ddp_status of that error */
	/* The rest is zero where an older libddp writes the page, which describes
	   every collective. */
	uint32_t culprit;          /* 1 + the rank that the error is about; 0: none in particular;
	                              UINT32_MAX: one that has another number in the step */
	uint32_t waiting;          /* enum ddp_waiting */
	uint32_t closed;           /* 1: the rank has ended its part, by ddp_finalize() */
	uint64_t collective_ns;    /* CLOCK_MONOTONIC, when what `waiting` says, or else the last
	                              collective, began; to some milliseconds */
	uint64_t described;        /* the collective that collective_text is about; 0: none */
	double step_seconds;       /* of the last step, */
	double step_weight;        /* and its samples, of all ranks */
	uint32_t writer;           /* enum ddp_writer */
	uint32_t aside;            /* enum ddp_aside, several at once; 0: the context of the step's ranks */
	int64_t steps;             /* that the training has when it ends; 0: not told */
	uint32_t error_state;      /* enum ddp_error_state, of `status` */
	uint32_t timeout_ms;       /* how long ranks wait for each other; 0: not told */
	uint64_t wanted_ns;        /* CLOCK_MONOTONIC, when a rank of another node last asked what
	                              this one does, as that rank waits for it; 0: never */
	union {
		char culprit_node[64]; /* that of the culprit; terminated; "": not told */
		struct {               /* DDP_WRITER_PYTHON knows of no culprit, and tells here: */
			double loss;   /* of the last step, */
			uint32_t told; /* and 1 if that is known */
		} python;
	};
	uint32_t pid;              /* of the process that writes the slot, which a shell may have started */
	union {
		uint32_t exposed;  /* 1 + how many millionths of the last step the rank waited for gradients; 0: not
		                      told, as by an older libddp */
		uint32_t others;   /* a reader's: what the other slots hold, as a hash */
	};
};

/* If memory or a processor of a node is damaged, the error tells so, and the node's name is between these words: a
   restart avoids the node. slurm_ddp of Python writes them, too. */
#define DDP_PROGRESS_WITHOUT "go on without node "
#define DDP_PROGRESS_FROM " from the last checkpoint"

/* The last page of the plugin's file is the node's own: the plugin tells ddp-status there what concerns all ranks of
   the node. A file of an older plugin lacks it. */
#define DDP_PROGRESS_SPARES_BYTES 1024
#define DDP_PROGRESS_HOST_BYTES 256
#define DDP_PROGRESS_KEY_BYTES 68
#define DDP_PROGRESS_NODE_MAGIC 0x6e706464u /* "ddpn", little-endian */
struct ddp_progress_node {
	uint32_t magic;
	uint32_t stall_seconds; /* of stall=; 0: nobody looks for a stall */
	uint32_t stalls;        /* how often all of the node's ranks made no progress for so long */
	uint32_t reserved;
	char spares[DDP_PROGRESS_SPARES_BYTES]; /* on the node of rank 0: the step's nodes that wait (spare=), as Slurm writes lists; terminated */
	/* With restart=, ranks that have kept their processes when others have died meet again with those that were
	   started for these. A process of the user's has written this, as the agent of each such rank has it do. */
	struct ddp_progress_deal {
		uint32_t generation; /* written last; 0: nothing is dealt */
		uint32_t restart_count; /* as DDP_RESTART_COUNT */
		uint32_t master_port;
		char master_addr[DDP_PROGRESS_HOST_BYTES]; /* terminated, as is: */
		char key[DDP_PROGRESS_KEY_BYTES]; /* hexadecimal */
	} deal;
};

/* Whether the rank has gone on after its last error. */
enum ddp_error_state {
	DDP_ERROR_PAST,  /* yes, or an older libddp, which does not tell */
	DDP_ERROR_OPEN,  /* not yet: it could still train, or end its part by ddp_finalize() */
	DDP_ERROR_FINAL  /* no: its world is broken, or ddp_init() failed */
};

/* Why what a slot says of other ranks does not go for the step; and, in the same word, what is not about that. */
enum ddp_aside {
	DDP_ASIDE_NUMBERS = 1, /* the process has another such context: numbers of collectives are not that one's */
	DDP_ASIDE_RANKS = 2,   /* the context's ranks have other numbers in the step */
	/* Not of that kind: */
	DDP_PROGRESS_SURVIVES = 4, /* if a rank dies, the others go on (ddp_survive()) */
	DDP_PROGRESS_SURVIVED = 8  /* the rank has gone on without others */
};

/* Who keeps the slot. Of a program that only uses NCCL, phases and steps are not known. */
enum ddp_writer {
	DDP_WRITER_LIBDDP,
	DDP_WRITER_NCCL, /* libnccl-profiler-ddp.so */
	DDP_WRITER_PYTHON /* slurm_ddp, libruntime/python */
};

/* Phases of programs without libddp, far behind those of enum ddp_phase. */
enum ddp_progress_phase {
	DDP_PROGRESS_STARTING = 64, /* it loads modules and data, for as long as it likes */
	DDP_PROGRESS_COMPUTING,     /* forward, backward and update of a step, which nobody tells apart */
	DDP_PROGRESS_ENDING         /* its last line has run */
};

/* Says which wait lasts; collective_text describes it. */
enum ddp_waiting {
	DDP_WAITING_NOT,
	DDP_WAITING_COLLECTIVE, /* `collective` */
	DDP_WAITING_OTHER       /* the wire-up, an operation of a group, a message */
};
