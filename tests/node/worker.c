/* worker SOCKET MIB: a worker with a pool of so many MiB of memory that it has not touched itself. Prints "registered",
 * or why the daemon refused the pool, and ends with its standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <strait/codec.h>
#include <strait/strait.h>

enum { PAGE = 65536, PATIENCE_MS = 20000 };

static int fail(const char *what, enum strait_status status)
{
    printf("%s: %s\n", what, strait_status_string(status));
    return EXIT_FAILURE;
}

static int await_pool(struct strait_client *client)
{
    struct strait_event event;
    while (strait_wait(client, &event, 1, PATIENCE_MS) == 1)
        if (event.type == STRAIT_EVENT_POOL) {
            printf("%s\n", event.status == STRAIT_OK ? "registered" : event.text);
            return event.status == STRAIT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
        }
    printf("no answer\n");
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const size_t size = strtoul(argv[2], NULL, 10) << 20;
    const struct strait_client_config config = {.size = sizeof(config), .socket = argv[1]};
    struct strait_client *client = NULL;
    struct strait_memory memory;
    struct strait_pool *pool = NULL;
    char byte;
    enum strait_status status = strait_client_open(&config, &client);
    if (status != STRAIT_OK)
        return fail("open", status);
    status = strait_alloc(size, &memory);
    if (status != STRAIT_OK)
        return fail("alloc", status);
    const struct strait_pool_region region = {.handle = STRAIT_HANDLE_MEMFD,
                                              .device = -1,
                                              .fd = memory.fd,
                                              .page_stride = PAGE,
                                              .page_count = (uint32_t)(size / PAGE),
                                              .rows = 1,
                                              .row_bytes = PAGE,
                                              .element = STRAIT_ELEMENT_BF16,
                                              .role = STRAIT_ROLE_K};
    const struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    status = strait_pool_register(client, &params, &pool);
    if (status != STRAIT_OK)
        return fail("register", status);
    if (await_pool(client) != EXIT_SUCCESS)
        return EXIT_FAILURE;
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return EXIT_SUCCESS;
}
