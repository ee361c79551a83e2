#include "bench/transfer_pools.h"

#include <stdlib.h>

#include "tools/util.h"

#define READY_NS   30000000000ull /* long, as the first pool of a GPU starts its driver and pins memory */
#define BLOB_BYTES (1024u * 1024)

bool bench_side_register(struct bench_side *side, const struct strait_pool_region *regions, uint32_t count,
                         struct strait_pool **pool)
{
    struct strait_pool_params params = {sizeof(params), regions, count};
    enum strait_status status = strait_pool_register(side->client, &params, pool);

    side->pools_asked += status == STRAIT_OK;
    if (status != STRAIT_OK)
        print_error(NULL, "%s: no pool: %s", side->name, strait_status_string(status));
    return status == STRAIT_OK;
}

static bool register_host(struct bench_side *side, const struct strait_memory *memory, const struct shape *shape,
                          const struct transfer_data *data, struct strait_pool **pool)
{
    struct strait_pool_region *regions = calloc(shape->regions, sizeof(regions[0]));
    bool registered;

    for (uint32_t r = 0; regions != NULL && r < shape->regions; r++) {
        struct strait_class class = transfer_data_class(data, shape, r);
        regions[r] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = memory->fd,
            .offset = r * shape->region_step,
            .page_stride = shape->page_bytes,
            .page_count = shape_places(shape),
            .rows = 1,
            .row_bytes = (uint32_t)shape->page_bytes,
            .element = STRAIT_ELEMENT_BF16,
            .role = class.role,
            .layer = class.layer,
        };
    }
    if (regions == NULL)
        print_error(NULL, "out of memory");
    registered = regions != NULL && bench_side_register(side, regions, shape->regions, pool);
    free(regions);
    return registered;
}

static bool introduce(const struct strait_pool *pool, struct strait_client *client, struct strait_peer **peer)
{
    uint8_t *blob = malloc(BLOB_BYTES);
    size_t size;
    enum strait_status status = blob == NULL ? STRAIT_ERR_NO_MEMORY : strait_pool_export(pool, blob, BLOB_BYTES, &size);

    if (status == STRAIT_OK)
        status = strait_peer_import(client, blob, size, peer);
    free(blob);
    if (status != STRAIT_OK)
        print_error(NULL, "pools cannot be introduced: %s", strait_status_string(status));
    return status == STRAIT_OK;
}

static bool wait_pools(struct bench_path *path)
{
    uint64_t end = clock_ns() + READY_NS;

    while (path->source.pools_ready < path->source.pools_asked || path->sink.pools_ready < path->sink.pools_asked) {
        if (clock_ns() > end) {
            print_error(NULL, "the daemons of path %s do not take the pools", path->name);
            return false;
        }
        if (!bench_path_work(path, 100000000))
            return false;
    }
    return true;
}

bool bench_path_introduce(struct bench_path *path, struct bench_pools *pools)
{
    return wait_pools(path) && introduce(pools->source, path->sink.client, &pools->source_peer) &&
           introduce(pools->sink, path->source.client, &pools->sink_peer);
}

bool bench_path_add_pools(struct bench_path *path, struct bench_pools *pools, const struct shape *shape,
                          const struct transfer_data *data)
{
    return register_host(&path->source, &data->source, shape, data, &pools->source) &&
           register_host(&path->sink, &data->sink, shape, data, &pools->sink) && bench_path_introduce(path, pools);
}
