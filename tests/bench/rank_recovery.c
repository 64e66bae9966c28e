/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_recovery: a rank of a program without libddp, and without any other library for ranks, which `recovery` hurts.
 *
 *   rank_recovery FOLDER STEPS STEP_US
 *
 * It appends a line "STEP NANOSECONDS" to FOLDER/steps.RANK for each step, and goes on after the last line of that file.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long last_step(const char *path)
{
	char line[64];
	long step = 0;
	FILE *file = fopen(path, "r");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		step = atol(line);
	if (file != NULL)
		fclose(file);
	return step;
}

int main(int argc, char **argv)
{
	const char *rank = getenv("RANK");
	char path[4096], line[64];
	struct timespec now;

	if (argc != 4 || rank == NULL) {
		fprintf(stderr, "usage: srun --ddp rank_recovery FOLDER STEPS STEP_US\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/steps.%s", argv[1], rank);
	long step = last_step(path);
	const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0) {
		perror(path);
		return 1;
	}
	while (step < atol(argv[2])) {
		usleep((useconds_t)atol(argv[3]));
		clock_gettime(CLOCK_MONOTONIC, &now);
		const int bytes = snprintf(line, sizeof(line), "%ld %lld\n", ++step, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
		if (write(fd, line, (size_t)bytes) != bytes) {
			perror(path);
			return 1;
		}
	}
	return 0;
}
