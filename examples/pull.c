/* pull.c - a decode worker fetches the KV pages of one request from a prefill worker.
 *
 *     example-pull source /tmp/prefill.blob /run/strait/straitd.sock &      on the prefill node
 *     example-pull sink   /tmp/prefill.blob /run/strait/straitd.sock        on the decode node
 *
 * The file stands for the channel between workers that a serving framework has anyway: the source writes its pool's
 * blob there, once; the sink reads it and starts the transfer. straitd runs on both nodes, or on one for both workers.
 * Exit code 0: the pages have arrived.
 */
#include <string.h>

#include "examples/example.h"

#define WANTED 10u /* pages of the request */

/* Content of the request's i-th page: any value, as long as both sides know it. */
static uint16_t value_of(uint32_t layer, uint32_t i, uint32_t at)
{
    return (uint16_t)(0x3f00 + layer * 16 + i + at % 100);
}

static void compute(const struct strait_memory *memory, const uint32_t ids[WANTED])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < WANTED; i++)
            for (uint32_t at = 0; at < PAGE_BYTES / 2; at++)
                page_of(memory, layer, ids[i])[at] = value_of(layer, i, at);
}

static bool in_place(const struct strait_memory *memory, uint32_t first_id)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < WANTED; i++)
            for (uint32_t at = 0; at < PAGE_BYTES / 2; at++)
                if (page_of(memory, layer, first_id + i)[at] != value_of(layer, i, at))
                    return false;
    return true;
}

/* Waits for the verdict of the only transfer. */
static bool await(struct strait_client *client)
{
    struct strait_event event;
    int verdict = 0;
    while (verdict == 0 && strait_wait(client, &event, 1, -1) == 1)
        verdict = handle(&event);
    return verdict > 0;
}

/* Source: the request's pages have the ids 2, 4, 6, ... They are offered until a sink fetches them. */
static bool serve(struct strait_client *client, struct strait_pool *pool, const struct strait_memory *memory,
                  const char *path)
{
    uint32_t ids[WANTED];
    remove(path); /* a file of an earlier run names a pool that no longer exists */
    for (uint32_t i = 0; i < WANTED; i++)
        ids[i] = 2 * i + 2;
    compute(memory, ids);
    struct strait_page_list list = {.count = WANTED, .ids = ids};
    struct strait_offer_params offer = {
        .size = sizeof(offer),
        .key = "request-1",
        .key_size = 9,
        .lists = &list,
        .list_count = 1,
        .lease_ms = PATIENCE,
        .last = true,
    };
    struct strait_transfer *transfer = NULL;
    check(strait_offer(pool, &offer, &transfer), "offer");
    write_blob(client, pool, path);
    bool good = await(client);
    remove(path);
    return good;
}

/* Sink: the pages shall land at the ids 40, 41, 42, ... */
static bool fetch(struct strait_client *client, struct strait_pool *pool, const struct strait_memory *memory,
                  const char *path)
{
    struct strait_peer *peer = read_blob(client, path);
    struct strait_page_list list = {.count = WANTED, .first_id = 40};
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
    check(strait_start(transfer, peer, NULL), "start");
    bool good = await(client) && in_place(memory, 40);
    puts(good ? "every value is in its place" : "not all is in its place");
    return good;
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
    bool good = source ? serve(client, pool, &memory, argv[2]) : fetch(client, pool, &memory, argv[2]);
    strait_client_close(client);
    strait_free(&memory);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
