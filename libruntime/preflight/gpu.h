/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preflight/gpu: what NVML tells of the GPU on which this rank computes. The library is loaded at run time.
 */
#pragma once

#include "preflight/facts.h"

/* The device for ddp_init(): "cuda" if this rank has a GPU, otherwise NULL. */
const char *preflight_gpu_device(void);

/* Fills in the facts of the GPU that preflight_gpu_device() means. What NVML does not tell stays unknown. */
void preflight_gpu_read(struct preflight_facts *facts);
