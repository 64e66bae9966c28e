/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port of rank 0's listener. Pure, but for port_probe().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/error.h"

/* The first port of SLURM_STEP_RESV_PORTS, such as "12000-12003,12010". */
bool port_from_reservation(const char *text, uint16_t *port, struct error *error);

/* Returns the port behind so many others of the list. Behind the last one comes the first one again. 0: the text is no
   list of ports. */
uint16_t port_of_reservation(const char *text, uint32_t skipped);

/*
 * A port in [low, high] that all tasks of the step agree on: steps of one job
 * get different ports as long as their ids differ by less than the range.
 */
uint16_t port_from_hash(uint32_t job_id, uint32_t step_id, uint32_t restart_count,
                        uint16_t low, uint16_t high);

/*
 * Whether the kernel may hand the port to an outgoing connection. The texts
 * are those of /proc/sys/net/ipv4/ip_local_port_range ("32768 60999") and
 * ip_local_reserved_ports ("8080,20000-29999" or ""), which exempts ports.
 */
bool port_is_ephemeral(uint16_t port, const char *local_range, const char *reserved);

/* Whether a listener can have the port here and now, on any address. */
bool port_probe(uint16_t port, struct error *error);
