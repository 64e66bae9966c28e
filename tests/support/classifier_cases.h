/* SPDX-License-Identifier: Apache-2.0 */
/*
 * classifier_cases: those of test_kernel_layers.c that are about the classifier, and about
 * results, of which the classifier's is one.
 */
#ifndef TESTS_CLASSIFIER_CASES_H
#define TESTS_CLASSIFIER_CASES_H

void classifier_layer(void **state);
void classifier_takes_a_large_vocabulary(void **state);
void classifier_survives_large_logits(void **state);
void a_number_that_is_none_stays_visible(void **state);
void results_stay_where_the_work_is_done(void **state);

#endif
