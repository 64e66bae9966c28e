/*
 * host_graph: graphs (kernels.h) of a queue that runs the host's kernels (host_kernels.h): a
 * list of the tasks that it was given, which a launch gives it anew.
 */
#ifndef DDP_DEVICE_HOST_GRAPH_H
#define DDP_DEVICE_HOST_GRAPH_H

#include "device/host_task.h"

typedef struct host_graph host_graph;

/* Of kernels/table.h. */
bool ddp_host_graph_begin(dk_queue *queue);
dk_graph *ddp_host_graph_end(dk_queue *queue, const char **why);
void ddp_host_graph_launch(dk_queue *queue, const dk_graph *graph);
void ddp_host_graph_free(dk_queue *queue, dk_graph *graph);

/* A task of the capture. */
void ddp_host_graph_keep(host_graph *graph, const task *what);
/* The capture will fail; `why` is a constant. */
void ddp_host_graph_spoil(host_graph *graph, const char *why);

#endif
