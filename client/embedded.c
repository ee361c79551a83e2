#include <dlfcn.h>

#include "client/client.h"

/* The daemon as a library: looked for only by who asks for it. Its thread ends with its end of the socket. */
#ifndef STRAIT_NODE_LIBRARY
#define STRAIT_NODE_LIBRARY "libstrait-node.so.0"
#endif

typedef int (*node_embed)(const char *options, int *fd, char *error, size_t error_size);

/* Never unloaded: its threads may outlive the client for a moment. */
static node_embed find_node_embed(void)
{
    void *library = dlopen(STRAIT_NODE_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return NULL;
    union { /* ISO C has no conversion from object to function pointers */
        void *object;
        node_embed function;
    } symbol = {.object = dlsym(library, "strait_node_embed")};
    return symbol.function;
}

enum strait_status embedded_start(const char *options, int *fd)
{
    char error[MESSAGE_TEXT_MAX] = "";
    node_embed embed = find_node_embed();
    if (embed == NULL)
        return STRAIT_ERR_UNSUPPORTED;
    return embed(options, fd, error, sizeof(error)) == STRAIT_OK ? STRAIT_OK : STRAIT_ERR_IO;
}
