/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/facts: what a rank finds out about itself and its node without measuring. Plain data, which ranks send to
   each other. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ddp.h>

enum { PREFLIGHT_WORD = 64, PREFLIGHT_UNLIMITED = -1 };

struct preflight_facts {
	int32_t rank, node, local_rank;
	char node_name[PREFLIGHT_WORD]; /* as Slurm has it, otherwise the host's name */
	char machine[PREFLIGHT_WORD];   /* one for each running kernel */
	/* The node has these. "": there is none. */
	char processor[PREFLIGHT_WORD];
	char kernel[PREFLIGHT_WORD];
	char glibc[PREFLIGHT_WORD];
	char libddp[PREFLIGHT_WORD];
	char ucx[PREFLIGHT_WORD];
	char driver[PREFLIGHT_WORD];
	char nccl[PREFLIGHT_WORD];
	int64_t processors;       /* that are online */
	int64_t memory_bytes;
	int64_t shm_bytes, shm_free_bytes; /* of /dev/shm */
	int64_t has_rdma;         /* a device of InfiniBand or RoCE; 0 or 1 */
	/* The rank has these. PREFLIGHT_UNLIMITED: no limit. */
	int64_t memlock, nofile;
	int64_t threads;
	int64_t cpus;             /* on which it may run */
	uint64_t numa;            /* bit i: these are of NUMA node i, up to 63 */
	uint64_t cpu_sum;         /* a hash of the list of CPUs */
	int64_t gpu_usable;       /* the rank can compute on it; 0 or 1 */
	int64_t gpu_numa;         /* the NUMA node of its GPU; -1: not known */
	char gpu[PREFLIGHT_WORD]; /* its name; "": none */
	char gpu_bus[PREFLIGHT_WORD];
	int64_t gpu_memory_bytes;
	int64_t gpu_ecc_errors;   /* uncorrected ones since the driver was loaded; -1: not known */
	int64_t gpu_clock_mhz;    /* that it was set to for programs; 0: not known */
	int64_t gpu_throttled;    /* the bits of NVML's reasons that mean heat or power; 0: none */
};

/* Notes the limits; to be called before libddp raises them. */
void preflight_facts_limits(struct preflight_facts *facts);

/* Finds out all but the limits and the GPU's part. */
void preflight_facts_read(struct preflight_facts *facts, const ddp_job *job, int threads);

/* The device for ddp_init(): "cuda" if this rank has a GPU, otherwise NULL. */
const char *preflight_gpu_device(void);

/* Fills in the facts of the GPU that preflight_gpu_device() means, as NVML tells them. The library is loaded at run
   time. What it does not tell stays unknown. */
void preflight_gpu_read(struct preflight_facts *facts);

/* ---- which ddp-preflight each rank runs. What ranks measure they send to each other as it lies in memory, so a rank
   of another release, or of a machine with other words, is named before anything else is sent. ---- */

enum { PREFLIGHT_RELEASE_WORD = 64, PREFLIGHT_RELEASE_TEXT = 384 };

/* Ranks of all releases send this, so it never changes, and has no words but characters. */
struct preflight_release {
	char node[PREFLIGHT_RELEASE_WORD];
	char version[PREFLIGHT_RELEASE_WORD];
	char form[PREFLIGHT_RELEASE_WORD]; /* of what is sent; equal texts mean equal forms */
};

/* The version of this build, such as "0.3.0+202611290907.g1a2b3c4d". */
const char *preflight_version(void);

/* Fills in this program's. `node` is the node's name. */
void preflight_release_own(struct preflight_release *own, const char *node);

/* Whether all ranks run what rank 0 runs; otherwise `text` says which nodes do not. Pure. */
bool preflight_releases_agree(const struct preflight_release *all, int ranks, char text[PREFLIGHT_RELEASE_TEXT]);
