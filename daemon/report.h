/* The report of a node about itself. */
#ifndef STRAIT_DAEMON_REPORT_H
#define STRAIT_DAEMON_REPORT_H

#include <stddef.h>

struct node;

/* What `strait status` and strait_stats show: JSON, malloc'ed. */
char *node_report(struct node *node, size_t *size);
char *node_metrics(struct node *node, size_t *size);

#endif
