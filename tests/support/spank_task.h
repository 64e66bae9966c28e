/* A task for tests of what it is told: rank 3 of 4, on the second of two nodes. */
#ifndef SPANK_TASK_H
#define SPANK_TASK_H

#include "spank/launch/variables.h"

#define ENVIRONMENT(...) ((char *[]){ (char[]){ "PATH=/bin" }, __VA_ARGS__ NULL })
#define V(text) (char[]){ text },

/* As srun hands it over; the task gets it with STEP_KEY before it. */
#define TASK_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct identity task(void);
struct task_extras extras(char *const *environment);

/* The variables of --ddp=LIST; fails the test where that is refused. */
void build(struct variables *variables, const char *list, const struct identity *identity,
           const struct task_extras *with);

#endif
