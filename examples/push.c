/* push.c - a prefill worker sends the KV pages of one request layer by layer, while it still computes.
 *
 *     example-push sink   /tmp/decode.blob /run/strait/straitd.sock &       on the decode node
 *     example-push source /tmp/decode.blob /run/strait/straitd.sock         on the prefill node
 *
 * The file stands for the framework's own channel. The sink says which pages the request may use; the source announces
 * its pages as `later`, starts, and appends each layer when it is ready. Exit code 0: everything arrived. */
#include <poll.h>
#include <string.h>

#include "examples/example.h"

#define WANTED 8u /* pages of the request, from page 0 onward */

/* An engine has its own event loop, in which it polls the client's descriptor along with its others, as done here.
 * Returns the verdict, as handle() does. */
static int pump(struct strait_client *client, int timeout_ms)
{
    struct pollfd fd = {.fd = strait_client_fd(client), .events = POLLIN};
    struct strait_event events[8];
    int verdict = 0;
    poll(&fd, 1, timeout_ms);
    uint32_t count = strait_poll(client, events, 8);
    for (uint32_t i = 0; i < count; i++)
        verdict = verdict != 0 ? verdict : handle(&events[i]);
    return verdict;
}

static bool await(struct strait_client *client, int verdict)
{
    while (verdict == 0)
        verdict = pump(client, -1);
    return verdict > 0;
}

static void compute(const struct strait_memory *memory, uint32_t layer)
{
    for (uint32_t i = 0; i < WANTED * PAGE_BYTES / 2; i++)
        page_of(memory, layer, 0)[i] = (uint16_t)(0x3f00 + layer + i % 200);
}

static bool in_place(const struct strait_memory *memory)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < WANTED * PAGE_BYTES / 2; i++)
            if (page_of(memory, layer, 0)[i] != (uint16_t)(0x3f00 + layer + i % 200))
                return false;
    return true;
}

static bool receive(struct strait_client *client, struct strait_pool *pool, const struct strait_memory *memory,
                    const char *path)
{
    remove(path); /* a file of an earlier run names a pool that no longer exists */
    struct strait_page_list list = {.count = WANTED};
    struct strait_expect_params expect = {
        .size = sizeof(expect),
        .key = "request-1",
        .key_size = 9,
        .lists = &list,
        .list_count = 1,
        .deadline_ms = PATIENCE,
    };
    struct strait_transfer *transfer = NULL;
    check(strait_expect(pool, &expect, &transfer), "expect");
    write_blob(client, pool, path);
    bool good = await(client, 0) && in_place(memory);
    remove(path);
    return good;
}

static bool send_layers(struct strait_client *client, struct strait_pool *pool, const struct strait_memory *memory,
                        const char *path)
{
    struct strait_peer *peer = read_blob(client, path);
    struct strait_page_list list = {.count = WANTED};
    struct strait_offer_params offer = {
        .size = sizeof(offer),
        .key = "request-1",
        .key_size = 9,
        .lists = &list,
        .list_count = 1,
        .lease_ms = PATIENCE,
        .later = true,
    };
    struct strait_transfer *transfer = NULL;
    check(strait_offer(pool, &offer, &transfer), "offer");
    check(strait_start(transfer, peer, NULL), "start");
    int verdict = 0;
    for (uint32_t layer = 0; layer < LAYERS && verdict == 0; layer++) {
        compute(memory, layer);
        struct strait_append_params ready = {
            .size = sizeof(ready),
            .layer_first = (int32_t)layer,
            .layer_count = 1,
            .last = layer == LAYERS - 1,
        };
        check(strait_append(transfer, &ready), "append");
        verdict = pump(client, 20);
    }
    return await(client, verdict);
}

int main(int argc, char **argv)
{
    if (argc < 3 || (strcmp(argv[1], "source") != 0 && strcmp(argv[1], "sink") != 0)) {
        fprintf(stderr, "usage: %s source|sink BLOB-FILE [SOCKET]\n", argv[0]);
        return 2;
    }
    struct strait_client_config config = {.size = sizeof(config), .socket = argc > 3 ? argv[3] : NULL};
    struct strait_client *client = NULL;
    struct strait_memory memory;
    check(strait_client_open(&config, &client), "open");
    struct strait_pool *pool = make_pool(client, &memory);
    bool source = strcmp(argv[1], "source") == 0;
    bool good = source ? send_layers(client, pool, &memory, argv[2]) : receive(client, pool, &memory, argv[2]);
    strait_client_close(client);
    strait_free(&memory);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
