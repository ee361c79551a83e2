/* demo_waiter A B: a worker at daemon B that waits for a request from a pool of daemon A, for demo.sh to see how that
 * looks. Prints "ready" when it knows the pool, then waits for a line on stdin, in which time A may be ended; prints
 * "waiting" once it has asked, and stays until stdin ends. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <strait/strait.h>

#define PATIENCE_MS 10000
#define TURN_MS     20
#define PAGE_BYTES  4096u

static void require_ok(enum strait_status status, const char *what)
{
    if (status == STRAIT_OK)
        return;
    fprintf(stderr, "demo_waiter: %s: %s\n", what, strait_status_string(status));
    exit(1);
}

static struct strait_client *open_client(const char *socket)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = socket};
    struct strait_client *client = NULL;
    require_ok(strait_client_open(&config, &client), "open");
    return client;
}

static struct strait_pool *make_pool(struct strait_client *client, struct strait_memory *memory)
{
    struct strait_pool *pool = NULL;
    require_ok(strait_alloc(PAGE_BYTES, memory), "alloc");
    struct strait_pool_region region = {.handle = STRAIT_HANDLE_MEMFD,
                                        .device = -1,
                                        .fd = memory->fd,
                                        .page_stride = PAGE_BYTES,
                                        .page_count = 1,
                                        .rows = 1,
                                        .row_bytes = PAGE_BYTES};
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    require_ok(strait_pool_register(client, &params, &pool), "register");
    return pool;
}

static void pump(struct strait_client *client, int milliseconds)
{
    struct strait_event events[8];
    for (int spent = 0; spent < milliseconds; spent += TURN_MS) {
        strait_poll(client, events, 8);
        usleep(TURN_MS * 1000);
    }
}

static struct strait_peer *introduce(struct strait_client *from, const struct strait_pool *pool,
                                     struct strait_client *to)
{
    static char blob[65536];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    enum strait_status status = STRAIT_ERR_AGAIN;
    for (int spent = 0; status == STRAIT_ERR_AGAIN && spent < PATIENCE_MS; spent += TURN_MS) {
        pump(from, TURN_MS);
        status = strait_pool_export(pool, blob, sizeof(blob), &size);
    }
    require_ok(status, "export");
    require_ok(strait_peer_import(to, blob, size, &peer), "import");
    return peer;
}

static void ask(struct strait_pool *pool, const struct strait_peer *peer)
{
    struct strait_page_list list = {.count = 1};
    struct strait_expect_params params = {.size = sizeof(params),
                                          .key = "never",
                                          .key_size = 5,
                                          .lists = &list,
                                          .list_count = 1,
                                          .deadline_ms = 6 * PATIENCE_MS};
    struct strait_transfer *transfer = NULL;
    require_ok(strait_expect(pool, &params, &transfer), "expect");
    require_ok(strait_start(transfer, peer, NULL), "start");
}

int main(int argc, char **argv)
{
    struct strait_memory memories[2];
    if (argc != 3)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    struct strait_client *a = open_client(argv[1]), *b = open_client(argv[2]);
    struct strait_pool *theirs = make_pool(a, &memories[0]), *ours = make_pool(b, &memories[1]);
    struct strait_peer *peer = introduce(a, theirs, b);
    puts("ready");
    if (getchar() == EOF)
        return 1;
    ask(ours, peer);
    pump(b, 500);
    puts("waiting");
    while (getchar() != EOF) {
    }
    strait_client_close(a);
    strait_client_close(b);
    strait_free(&memories[0]);
    strait_free(&memories[1]);
    return 0;
}
