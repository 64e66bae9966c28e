/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/title.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The kernel says in /proc where in memory the title lies. */
void title_take(const char *name)
{
	unsigned long start = 0, end = 0;
	char text[1024], *field;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	prctl(PR_SET_NAME, name);
	text[got > 0 ? got : 0] = '\0';
	/* Field 3 comes behind the command in parentheses; the two fields read here are 48 and 49. */
	field = strrchr(text, ')');
	for (int i = 2; field != NULL && i < 48; i++)
		field = strchr(field + 1, ' ');
	if (field == NULL || sscanf(field, "%lu %lu", &start, &end) != 2 || end <= start ||
	    end - start <= strlen(name))
		return;
	memset((void *)start, 0, end - start);
	memcpy((void *)start, name, strlen(name));
}
