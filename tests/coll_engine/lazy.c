#include "tests/coll_engine/lazy.h"

#include <stdlib.h>

coll_id lazy_id;

void lazy_settle(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS)
        require_ok(ncclCommGetAsyncError(comm, &result));
    require_ok(result);
}

void lazy_make(struct rank *rank)
{
    struct fake_config config = {.size = sizeof(config)};
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require(ncclCommInitRankConfig(&rank->comm, rank->ranks, lazy_id, rank->rank, &config) == COLL_IN_PROGRESS);
}

void lazy_begin(struct rank *rank)
{
    lazy_make(rank);
    lazy_settle(rank->comm, COLL_IN_PROGRESS);
}

void lazy_run(int ranks, void (*body)(struct rank *), void *argument)
{
    setenv("STRAIT_COLL", "compress", 0);
    require_ok(ncclGetUniqueId(&lazy_id));
    ranks_start(ranks, body, argument);
    require(fake_gpu.made == 0);
}

struct lazy_buffers lazy_buffers(const struct rank *rank)
{
    const struct lazy_buffers made = {values_new(COLL_BF16, LAZY_COUNT, 0),
                                      values_new(COLL_BF16, (size_t)rank->ranks * LAZY_COUNT, 0)};
    values_fill(made.own, COLL_BF16, LAZY_COUNT, VALUES_NORMAL, (unsigned)rank->rank);
    return made;
}

void lazy_check(const struct rank *rank, struct lazy_buffers *buffers)
{
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        require(values_are(buffers->all + (size_t)from * LAZY_COUNT * 2, COLL_BF16, LAZY_COUNT, VALUES_NORMAL,
                           (unsigned)from));
    values_free(buffers->own, COLL_BF16, 0);
    values_free(buffers->all, COLL_BF16, 0);
}

coll_result lazy_ask(struct rank *rank, const struct lazy_buffers *buffers)
{
    return ncclAllGather(buffers->own, buffers->all, LAZY_COUNT, COLL_BF16, rank->comm, rank->stream);
}

void lazy_gather(struct rank *rank)
{
    struct lazy_buffers buffers = lazy_buffers(rank);
    lazy_settle(rank->comm, lazy_ask(rank, &buffers));
    lazy_check(rank, &buffers);
}

void lazy_end(struct rank *rank)
{
    fake_stream_wait(rank->stream);
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

void lazy_require_told(struct rank *rank, const char *operation, unsigned long long calls,
                       unsigned long long compressed)
{
    const struct told told = told_of(rank->comm, operation, "bf16");
    if (told.calls != calls || told.compressed != compressed)
        fprintf(stderr, "%s: %llu calls, %llu compressed: %s\n", operation, told.calls, told.compressed, told.reason);
    require(told.calls == calls && told.compressed == compressed);
}
