/* SPDX-License-Identifier: Apache-2.0 */
/* model_case: a whole GPT forward and backward in a place of kernel_cases.h, where its memory, which is the
   host's, is the place's, too; beside the same on the host. */
#pragma once

/* For in_each_place(). */
void try_model_case(void);
