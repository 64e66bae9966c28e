/* SPDX-License-Identifier: Apache-2.0 */
/* buddies: which rank keeps copies for which other one (reduce/buddy.h). */
#pragma once

/* buddies[ranks] becomes the buddy of each rank. nodes[ranks] are the nodes of ranks, numbered from 0 without gaps;
   order[ranks] becomes the ranks by nodes. */
void ddp_buddy_choose(const int *nodes, int ranks, int *order, int *buddies);
