/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cases: those of test_kernel_layers.c that are about attention. */
#ifndef TESTS_ATTENTION_CASES_H
#define TESTS_ATTENTION_CASES_H

void attention_layer(void **state);
void a_batch_may_be_larger_than_scratch(void **state);
void attention_over_several_tiles(void **state);

#endif
