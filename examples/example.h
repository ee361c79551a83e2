/* Shared by both examples: a pool, and a file that stands for the framework's own channel. */
#ifndef STRAIT_EXAMPLES_EXAMPLE_H
#define STRAIT_EXAMPLES_EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <strait/codec.h>
#include <strait/strait.h>

#define LAYERS     4u
#define PAGES      64u         /* of the pool */
#define PAGE_BYTES (16u << 10) /* 16 tokens of 4 heads of 128 BF16 values */
#define PATIENCE   30000u      /* ms */

static inline void check(enum strait_status status, const char *what)
{
    if (status == STRAIT_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, strait_status_string(status));
    exit(EXIT_FAILURE);
}

/* One region per layer, K only, one after another in memory that the daemon can map. */
static inline struct strait_pool *make_pool(struct strait_client *client, struct strait_memory *memory)
{
    struct strait_pool_region regions[LAYERS];
    struct strait_pool *pool = NULL;
    check(strait_alloc((size_t)LAYERS * PAGES * PAGE_BYTES, memory), "alloc");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        regions[layer] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = (uint64_t)layer * PAGES * PAGE_BYTES,
            .page_stride = PAGE_BYTES,
            .page_count = PAGES,
            .rows = 1,
            .row_bytes = PAGE_BYTES,
            .element = STRAIT_ELEMENT_BF16,
            .role = STRAIT_ROLE_K,
            .layer = (int32_t)layer,
            .heads = 4,
        };
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = LAYERS};
    check(strait_pool_register(client, &params, &pool), "register");
    return pool;
}

static inline uint16_t *page_of(const struct strait_memory *memory, uint32_t layer, uint32_t id)
{
    return (uint16_t *)memory->base + ((size_t)layer * PAGES + id) * (PAGE_BYTES / 2);
}

/* The blob contains the daemon's address, so it exists only once the daemon has answered. The file is renamed into
 * place when it is complete. */
static inline void write_blob(struct strait_client *client, const struct strait_pool *pool, const char *path)
{
    uint8_t blob[65536];
    char temporary[4096];
    size_t size = 0;
    struct strait_event event;
    for (uint32_t waited = 0; !strait_client_connected(client); waited += 100) {
        check(waited < PATIENCE ? STRAIT_OK : STRAIT_ERR_AGAIN, "no daemon answers");
        strait_wait(client, &event, 1, 100);
    }
    check(strait_pool_export(pool, blob, sizeof(blob), &size), "export");
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    FILE *file = fopen(temporary, "wb");
    if (file == NULL || fwrite(blob, 1, size, file) != size || fclose(file) != 0 || rename(temporary, path) != 0)
        check(STRAIT_ERR_IO, path);
}

static inline struct strait_peer *read_blob(struct strait_client *client, const char *path)
{
    uint8_t blob[65536];
    struct strait_peer *peer = NULL;
    FILE *file;
    while ((file = fopen(path, "rb")) == NULL)
        usleep(10000);
    size_t size = fread(blob, 1, sizeof(blob), file);
    fclose(file);
    check(strait_peer_import(client, blob, size, &peer), "import");
    return peer;
}

/* Handles one event: returns 1 for the verdict DONE, -1 for FAILED, else 0. */
static inline int handle(const struct strait_event *event)
{
    if (event->type == STRAIT_EVENT_POOL)
        check((enum strait_status)event->status, "the daemon refused the pool");
    if (event->type == STRAIT_EVENT_LAYER)
        printf("layer %d has landed\n", event->layer);
    if (event->type != STRAIT_EVENT_STATE)
        return 0;
    printf("%s\n", strait_state_string(event->state));
    if (event->state == STRAIT_FAILED)
        fprintf(stderr, "%s: %u pages not in place: %s\n", strait_reason_string(event->reason), event->failed_count,
                event->text);
    return event->state == STRAIT_DONE ? 1 : event->state == STRAIT_FAILED ? -1 : 0;
}

#endif
