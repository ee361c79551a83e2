/* offerer FILE OFFSET FIRST COUNT SOCKET [SINK-SOCKET]: a worker whose pool holds a KV cache, six arrays of 64 KiB from
 * OFFSET of the file on: K and V of layers 0, 5 and 11, in 16 pages each. It offers COUNT pages from FIRST on, prints
 * "offered" when the daemon knows that, and stays until stdin ends. With a sink's socket, a worker there fetches them
 * first, and "moved" is printed when they are there as they were. */
#include <string.h>

#include "examples/example.h"

enum { ARRAYS = 6, ARRAY_BYTES = 65536, CACHE_PAGES = 16, CACHE_PAGE = ARRAY_BYTES / CACHE_PAGES, TURN_MS = 20 };

struct worker {
    struct strait_client *client;
    struct strait_memory memory;
    struct strait_pool *pool;
};

static struct worker open_worker(const char *socket)
{
    static const int32_t layers[] = {0, 5, 11};
    struct worker worker;
    struct strait_client_config config = {.size = sizeof(config), .socket = socket};
    struct strait_pool_region regions[ARRAYS];
    check(strait_client_open(&config, &worker.client), "open");
    check(strait_alloc((size_t)ARRAYS * ARRAY_BYTES, &worker.memory), "alloc");
    for (uint32_t r = 0; r < ARRAYS; r++)
        regions[r] = (struct strait_pool_region){.handle = STRAIT_HANDLE_MEMFD,
                                                 .device = -1,
                                                 .fd = worker.memory.fd,
                                                 .offset = (uint64_t)r * ARRAY_BYTES,
                                                 .page_stride = CACHE_PAGE,
                                                 .page_count = CACHE_PAGES,
                                                 .rows = 1,
                                                 .row_bytes = CACHE_PAGE,
                                                 .element = STRAIT_ELEMENT_BF16,
                                                 .role = r % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                                 .layer = layers[r / 2]};
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = ARRAYS};
    check(strait_pool_register(worker.client, &params, &worker.pool), "register");
    return worker;
}

static void read_cache(const struct worker *worker, const char *path, long offset)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, offset, SEEK_SET) != 0 ||
        fread(worker->memory.base, ARRAY_BYTES, ARRAYS, file) != ARRAYS)
        check(STRAIT_ERR_IO, path);
    fclose(file);
}

/* Handles the events of a while. Returns 1 for the verdict DONE, -1 for FAILED. */
static int turn(struct strait_client *client, bool *told)
{
    struct strait_event events[8];
    int verdict = 0;
    uint32_t count = strait_wait(client, events, 8, TURN_MS);
    for (uint32_t i = 0; i < count; i++) {
        if (told != NULL && events[i].type == STRAIT_EVENT_STATS)
            *told = true;
        const int one = events[i].type == STRAIT_EVENT_STATE && events[i].state >= STRAIT_DONE     ? 1
                        : events[i].type == STRAIT_EVENT_STATE && events[i].state == STRAIT_FAILED ? -1
                                                                                                   : 0;
        verdict = one != 0 ? one : verdict;
    }
    return verdict;
}

static void offer(const struct worker *worker, const struct strait_page_list *list)
{
    struct strait_offer_params params = {.size = sizeof(params),
                                         .key = "cache",
                                         .key_size = 5,
                                         .lists = list,
                                         .list_count = 1,
                                         .lease_ms = 10 * PATIENCE,
                                         .last = true};
    struct strait_transfer *transfer = NULL;
    bool told = false;
    check(strait_offer(worker->pool, &params, &transfer), "offer");
    while (!strait_client_connected(worker->client))
        (void)turn(worker->client, NULL);
    check(strait_stats(worker->client), "stats"); /* answered after what was sent before */
    while (!told)
        (void)turn(worker->client, &told);
}

static struct strait_peer *introduce(const struct worker *source, const struct worker *sink)
{
    static char blob[65536];
    size_t size;
    struct strait_peer *peer = NULL;
    while (!strait_client_connected(sink->client))
        (void)turn(sink->client, NULL);
    check(strait_pool_export(source->pool, blob, sizeof(blob), &size), "export");
    check(strait_peer_import(sink->client, blob, size, &peer), "import");
    return peer;
}

static void fetch(const struct worker *source, const char *socket, const struct strait_page_list *list)
{
    struct worker sink = open_worker(socket);
    struct strait_peer *peer = introduce(source, &sink);
    struct strait_expect_params params = {
        .size = sizeof(params), .key = "cache", .key_size = 5, .lists = list, .list_count = 1, .deadline_ms = PATIENCE};
    struct strait_transfer *transfer = NULL;
    int verdict = 0;
    check(strait_expect(sink.pool, &params, &transfer), "expect");
    check(strait_start(transfer, peer, NULL), "start");
    while (verdict == 0) {
        (void)turn(source->client, NULL);
        verdict = turn(sink.client, NULL);
    }
    for (uint32_t r = 0; verdict > 0 && r < ARRAYS; r++) {
        const size_t from = (size_t)r * ARRAY_BYTES + (size_t)list->first_id * CACHE_PAGE;
        if (memcmp((char *)source->memory.base + from, (char *)sink.memory.base + from,
                   (size_t)list->count * CACHE_PAGE) != 0)
            verdict = -1;
    }
    check(verdict > 0 ? STRAIT_OK : STRAIT_ERR_INTEGRITY, "fetch");
    puts("moved");
    strait_client_close(sink.client);
    strait_free(&sink.memory);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    struct worker worker = open_worker(argv[5]);
    const struct strait_page_list list = {.first_id = (uint32_t)atoi(argv[3]), .count = (uint32_t)atoi(argv[4])};
    read_cache(&worker, argv[1], atol(argv[2]));
    offer(&worker, &list);
    puts("offered");
    if (argc > 6)
        fetch(&worker, argv[6], &list);
    while (getchar() != EOF) {
    }
    strait_client_close(worker.client);
    strait_free(&worker.memory);
    return 0;
}
