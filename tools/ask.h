/* Statistics of a daemon, asked for over its unix socket, and reading them. */
#ifndef STRAIT_TOOLS_ASK_H
#define STRAIT_TOOLS_ASK_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#define ASK_PATIENCE_MS 2000u

struct strait_client;

/* Connection to a daemon. Begin with the path alone. */
struct asked {
    const char *path; /* borrowed */
    struct strait_client *client;
    char why[256]; /* why there was no answer, for people */
};

/* Asks, connecting first where that is needed, and waits for the answer: JSON text, the caller's to free. NULL: none
 * came; `why`, and the next call connects anew. */
char *daemon_ask(struct asked *daemon, unsigned patience_ms);
void daemon_leave(struct asked *daemon);

/* A socket of its own, without the library: connected once, non-blocking, the caller's to close. -1: `why`. */
int daemon_connect(struct asked *daemon);

/* Fields of an object: 0, "" and false where there is none of that type. */
double number_of(const cJSON *object, const char *name);
const char *text_of(const cJSON *object, const char *name);
bool is_true(const cJSON *object, const char *name);

#endif
