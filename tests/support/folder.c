/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char test_folder[TEST_FOLDER_BYTES];

int folder_make(void **state)
{
	(void)state;
	snprintf(test_folder, sizeof(test_folder), "/tmp/ddp-test-XXXXXX");
	return mkdtemp(test_folder) != NULL ? 0 : -1;
}

int folder_empty(void **state)
{
	int failed = folder_remove(state);

	return failed != 0 ? failed : mkdir(test_folder, 0700);
}

int folder_remove(void **state)
{
	char command[TEST_FOLDER_BYTES + 16];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", test_folder);
	return system(command);
}

int folder_count(const char *path, const char *prefix)
{
	DIR *folder = opendir(path);
	int count = 0;

	if (folder == NULL)
		return 0;
	for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
		count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
	closedir(folder);
	return count;
}
