/* Options that change while the daemon runs. A file that is bad in any way changes nothing. */
#ifndef STRAIT_DAEMON_RELOAD_H
#define STRAIT_DAEMON_RELOAD_H

#include "daemon/node.h"

/* What new options name, read from the files. */
struct reload {
    struct node_options options;
    struct credentials *credentials; /* NULL: none */
    struct strait_codebook *codebook;
    struct tenants *tenants;
};

/* Reads the files that checked options name. Blocks; any thread. On OK the caller applies the reload, or drops it;
 * otherwise `why` says which file is wrong, and there is nothing to drop. */
enum strait_status reload_read(const struct node_options *options, struct reload *reload, char *why, size_t why_size);
void reload_drop(struct reload *reload);
/* Reads all of them and keeps nothing: `bad` is called for each that is wrong. */
void reload_try(const struct node_options *options, void (*bad)(void *owner, const char *why), void *owner);

/* Applies everything and drops it. Options that a running daemon cannot change
 * are named in the log. On ERR_* nothing has changed, and `why` says what is wrong. */
enum strait_status node_reload(struct node *node, struct reload *reload, char *why, size_t why_size);

#endif
