/* SPDX-License-Identifier: Apache-2.0 */
/* folder: a test program's folder for files, which is removed at its end; and what others hold. */
#pragma once

enum { TEST_FOLDER_BYTES = 32 };

extern char test_folder[TEST_FOLDER_BYTES]; /* its path, once made */

/* For cmocka: before all tests, before each one, and after all. */
int folder_make(void **state);
int folder_empty(void **state);
int folder_remove(void **state);

/* How many names in a folder begin so; 0, too, if there is no such folder. */
int folder_count(const char *path, const char *prefix);
