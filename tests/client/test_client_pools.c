/* Pools of libstrait: what may be registered and how it arrives, how a pool ends, and peers made of exported ones. */
#include "tests/client/harness.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/blob.h"

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

TEST(a_pool_arrives_in_order_with_one_descriptor_for_each_memory)
{
    connect_client();
    int again = dup(memory.fd);
    struct strait_memory other;
    ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES, &other));
    struct strait_pool_region regions[4] = {region_of(1, 0, 0), region_of(0, 1, 2), region_of(0, 1, 1),
                                            region_of(0, 0, 2)};
    regions[0].fd = other.fd;
    regions[0].element = STRAIT_ELEMENT_FP32;
    regions[1].fd = again;
    regions[1].offset = PAGES * PAGE_BYTES;
    regions[1].heads = 8;
    regions[2].rows = 2;
    regions[2].row_bytes = PAGE_BYTES / 4;
    regions[2].row_stride = PAGE_BYTES / 2;
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 4};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    ck_assert_int_eq(STRAIT_OK, strait_set_policy(pool, STRAIT_CODING_RAW));
    close(again);
    memset(regions, 0xff, sizeof(regions));
    until(find_got(MESSAGE_POLICY, 0) != NULL);
    const struct got *got = &fake.got[1];
    const struct message_pool_register *made = &got->message.pool_register;
    ck_assert_mem_eq(strait_pool_id(pool), made->pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_uint_eq(4, made->region_count);
    static const uint32_t order[4][3] = {{0, 0, 2}, {0, 1, 1}, {0, 1, 2}, {1, 0, 0}};
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(order[i][0], made->regions[i].group);
        ck_assert_int_eq((int)order[i][1], made->regions[i].layer);
        ck_assert_uint_eq(order[i][2], made->regions[i].role);
        ck_assert_int_eq(-1, made->regions[i].device);
        ck_assert_uint_eq(STRAIT_HANDLE_MEMFD, made->regions[i].handle);
    }
    ck_assert_uint_eq(PAGE_BYTES / 2, made->regions[1].row_stride);
    ck_assert_uint_eq(PAGES * PAGE_BYTES, made->regions[2].offset);
    ck_assert_uint_eq(8, made->regions[2].heads);
    ck_assert_uint_eq(STRAIT_ELEMENT_FP32, made->regions[3].element);
    ck_assert_uint_eq(2, made->fd_count);
    ck_assert_uint_eq(2, got->fd_count);
    ck_assert_uint_eq(made->regions[0].fd, made->regions[2].fd);
    ck_assert_uint_ne(made->regions[0].fd, made->regions[3].fd);
    for (int i = 0; i < 4; i++) {
        struct stat theirs, ours;
        fstat(got->fds[made->regions[i].fd], &theirs);
        fstat(i == 3 ? other.fd : memory.fd, &ours);
        ck_assert_uint_eq(ours.st_ino, theirs.st_ino);
    }
    ck_assert_uint_eq(STRAIT_CODING_RAW, find_got(MESSAGE_POLICY, 0)->policy.coding);
    strait_free(&other);
}

typedef void (*spoil)(struct strait_pool_region *);
static struct strait_memory shrinkable;

#define SPOIL(name, ...)                                \
    static void name(struct strait_pool_region *region) \
    {                                                   \
        __VA_ARGS__;                                    \
    }
SPOIL(bad_handle, region->handle = (enum strait_handle)9)
SPOIL(no_handle, region->handle = (enum strait_handle)0)
SPOIL(plain_pointer, region->handle = STRAIT_HANDLE_POINTER; region->pointer = memory.base)
SPOIL(no_descriptor, region->fd = -1)
SPOIL(not_a_memfd, region->fd = STDERR_FILENO)
SPOIL(not_sealed, region->fd = shrinkable.fd)
SPOIL(on_a_gpu, region->device = 0)
SPOIL(ipc_of_no_gpu, region->handle = STRAIT_HANDLE_CUDA_IPC)
SPOIL(beyond_the_end, region->offset = memory.size - (uint64_t)PAGES * PAGE_BYTES + 2)
SPOIL(overflowing_stride, region->page_stride = UINT64_MAX / 2 & ~1ull)
SPOIL(overflowing_offset, region->offset = UINT64_MAX - 1)
SPOIL(overflowing_rows, region->rows = 2; region->row_bytes = 2; region->row_stride = UINT64_MAX - 1)
SPOIL(odd_offset, region->offset = 1)
SPOIL(odd_stride, region->page_stride = PAGE_BYTES + 1)
SPOIL(odd_page, region->row_bytes = PAGE_BYTES - 1)
SPOIL(odd_rows, region->rows = 2; region->row_bytes = 2; region->row_stride = 3)
SPOIL(no_pages, region->page_count = 0)
SPOIL(no_rows, region->rows = 0)
SPOIL(empty_rows, region->row_bytes = 0)
SPOIL(huge_page, region->rows = 1 << 16; region->row_bytes = 1 << 16; region->page_count = 1)
SPOIL(overlapping_pages, region->page_stride = PAGE_BYTES - 2)
SPOIL(overlapping_rows, region->rows = 4; region->row_bytes = 64; region->row_stride = 62)
SPOIL(bad_element, region->element = 6)
SPOIL(bad_role, region->role = 3)
SPOIL(bad_layer, region->layer = -2)
SPOIL(far_group, region->group = STRAIT_GROUPS_MAX)
SPOIL(group_gap, region->group = 2)
SPOIL(two_elements, region->element = STRAIT_ELEMENT_FP16)

static const spoil spoils[] = {
    bad_handle, no_handle,     plain_pointer,     no_descriptor,      not_a_memfd,        not_sealed,
    on_a_gpu,   ipc_of_no_gpu, beyond_the_end,    overflowing_stride, overflowing_offset, overflowing_rows,
    odd_offset, odd_stride,    odd_page,          odd_rows,           no_pages,           no_rows,
    empty_rows, huge_page,     overlapping_pages, overlapping_rows,   bad_element,        bad_role,
    bad_layer,  far_group,     group_gap,         two_elements,
};

TEST_LOOP(regions_that_make_no_sense_are_refused, COUNT(spoils))
{
    open_client();
    shrinkable.fd = memfd_create("shrinkable", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(0, ftruncate(shrinkable.fd, (off_t)memory.size));
    struct strait_pool_region regions[2] = {region_of(0, 0, 1), region_of(0, 0, 2)};
    struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = 2};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    pool = NULL;
    spoils[_i](&regions[1]);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
    ck_assert_ptr_null(pool);
    close(shrinkable.fd);
}

TEST(layouts_with_rows_outside_of_pages_are_fine)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    region.rows = 4; /* [rows][pages][64 bytes] */
    region.row_bytes = region.page_stride = 64;
    region.row_stride = 64 * PAGES;
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    region.row_stride -= 2;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
}

TEST(params_of_another_release_are_refused_unless_the_rest_is_zero)
{
    open_client();
    struct strait_pool_region region = region_of(0, 0, 1);
    struct {
        struct strait_pool_params params;
        uint64_t later;
    } newer = {{.size = sizeof(newer), .regions = &region, .region_count = 1}, 0};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &newer.params, &pool));
    newer.later = 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.size = sizeof(newer.params) - 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params = (struct strait_pool_params){.size = sizeof(newer.params), .regions = &region};
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
    newer.params.region_count = STRAIT_REGIONS_MAX + 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &newer.params, &pool));
}

TEST(more_memories_than_travel_with_a_frame_are_refused)
{
    open_client();
    struct strait_pool_region regions[CHANNEL_FDS_MAX + 1];
    struct strait_memory memories[CHANNEL_FDS_MAX + 1];
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++) {
        ck_assert_int_eq(STRAIT_OK, strait_alloc((size_t)PAGES * PAGE_BYTES, &memories[i]));
        regions[i] = region_of(0, (int32_t)i, 1);
        regions[i].fd = memories[i].fd;
    }
    struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = CHANNEL_FDS_MAX + 1};
    struct strait_pool *pool = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_pool_register(client, &params, &pool));
    params.region_count--;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &pool));
    for (uint32_t i = 0; i <= CHANNEL_FDS_MAX; i++)
        strait_free(&memories[i]);
}

TEST(a_refused_pool_fails_what_uses_it)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    fake_pool_status(pool, STRAIT_ERR_NO_MEMORY, false);
    until(count_events(STRAIT_EVENT_STATE) == 1);
    ck_assert_ptr_eq(pool, find_event(STRAIT_EVENT_POOL, 0)->event.pool);
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, find_event(STRAIT_EVENT_POOL, 0)->event.status);
    ck_assert_str_eq("because", find_event(STRAIT_EVENT_POOL, 0)->text);
    ck_assert_ptr_eq(transfer, find_event(STRAIT_EVENT_STATE, 0)->event.transfer);
    struct strait_transfer *later = expect_pages(pool, 0, 1, 60000);
    until(count_events(STRAIT_EVENT_STATE) == 2);
    const struct strait_event *event = &find_event(STRAIT_EVENT_STATE, 1)->event;
    ck_assert_ptr_eq(later, event->transfer);
    ck_assert_int_eq(STRAIT_REASON_LOCAL, event->reason);
    ck_assert(event->drained);
    ck_assert_ptr_null(find_got(MESSAGE_EXPECT, 1));
}

TEST(a_pool_is_gone_when_the_daemon_let_go_of_it)
{
    struct strait_pool *pool;
    uint64_t id;
    struct strait_transfer *transfer = expected(&pool, &id, 60000);
    strait_pool_remove(pool);
    strait_pool_remove(pool);
    until(find_got(MESSAGE_POOL_REMOVE, 0) != NULL);
    ck_assert_ptr_null(find_got(MESSAGE_POOL_REMOVE, 1));
    ck_assert_uint_eq(id, find_got(MESSAGE_ABORT, 0)->transfer.transfer);
    struct strait_expect_params params = expect_params(NULL, 0);
    struct strait_transfer *none = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_expect(pool, &params, &none));
    settle();
    ck_assert_uint_eq(0, seen_count);
    fake_state(id, STRAIT_FAILED, STRAIT_REASON_ABORTED, false);
    fake_drained(id);
    fake_pool_status(pool, STRAIT_OK, true);
    until(seen_count == 3);
    ck_assert_int_eq(STRAIT_EVENT_STATE, seen[0].event.type);
    ck_assert_int_eq(STRAIT_EVENT_DRAINED, seen[1].event.type);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[2].event.type);
    ck_assert_ptr_eq(pool, seen[2].event.pool);
    ck_assert(strait_transfer_progress(transfer).drained);
}

TEST(a_pool_goes_at_once_without_a_daemon_and_with_its_end)
{
    open_client();
    struct strait_pool *pool = register_pool();
    struct strait_transfer *transfer = expect_pages(pool, 0, 1, 60000);
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(2, seen_count);
    ck_assert_ptr_eq(transfer, seen[0].event.transfer);
    ck_assert_int_eq(STRAIT_REASON_ABORTED, seen[0].event.reason);
    ck_assert_int_eq(STRAIT_EVENT_POOL_REMOVED, seen[1].event.type);
    fake_listen();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(strait_client_connected(client));
    ck_assert_uint_eq(1, fake.count); /* no pool */
    pool = register_pool();
    strait_pool_remove(pool);
    settle();
    ck_assert_uint_eq(1, count_events(STRAIT_EVENT_POOL_REMOVED));
    fake_hang_up();
    until(count_events(STRAIT_EVENT_POOL_REMOVED) == 2);
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

TEST(a_pool_is_exported_once_the_daemon_told_its_address)
{
    uint8_t bytes[4096];
    size_t size = 0;
    fake_listen();
    open_client();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_ERR_AGAIN, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    fake_welcome(PROTOCOL_VERSION);
    until(strait_client_connected(client));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_pool_export(pool, NULL, 0, &size));
    ck_assert_uint_gt(size, BLOB_HEADER_BYTES);
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, size, &size));
    struct pool_blob blob;
    ck_assert_int_eq(STRAIT_OK, blob_unpack(bytes, size, &blob));
    ck_assert_str_eq(ADDRESS, blob.address);
    ck_assert_mem_eq(strait_pool_id(pool), blob.pool.bytes, STRAIT_POOL_ID_BYTES);
    ck_assert_mem_eq(fake.codebook_id, blob.codebook_id, sizeof(fake.codebook_id));
    ck_assert_uint_eq(2, blob.region_count);
    ck_assert_uint_eq(STRAIT_ROLE_K, blob.regions[0].role);
    blob_fini(&blob);
    fake_hang_up();
    until(!strait_client_connected(client)); /* what is known stays known */
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
}

TEST(blobs_that_are_none_are_refused_by_reason)
{
    uint8_t bytes[4096];
    size_t size = 0;
    struct strait_peer *peer = NULL;
    connect_client();
    struct strait_pool *pool = register_pool();
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool, bytes, sizeof(bytes), &size));
    for (size_t cut = 0; cut < size; cut++)
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_peer_import(client, bytes, cut, &peer));
    bytes[size - 1] ^= 1;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_peer_import(client, bytes, size, &peer));
    ck_assert_ptr_null(peer);
}

TEST(pools_are_compared_and_only_codebooks_may_differ)
{
    connect_client();
    struct strait_pool *pool = register_pool();
    struct strait_peer *peer = import_peer(pool);
    ck_assert_uint_eq(0, strait_peer_check(pool, peer));
    struct strait_pool_region region = region_of(0, 3, 1);
    region.row_bytes = PAGE_BYTES / 2;
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    struct strait_pool *other = NULL;
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(client, &params, &other));
    ck_assert_uint_ne(0, strait_peer_check(other, peer) & STRAIT_MISMATCH_FATAL);
    struct strait_transfer *transfer = expect_pages(other, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_start(transfer, peer, NULL));
    struct strait_transfer *same = expect_pages(pool, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(same, peer, NULL));
    fake.codebook_id[0] ^= 1; /* the daemon comes back with another one */
    fake_forget();
    fake_hang_up();
    until(find_got(MESSAGE_HELLO, 0) != NULL);
    struct strait_transfer *waits = expect_pages(pool, 0, 1, 60000);
    ck_assert_int_eq(STRAIT_OK, strait_start(waits, peer, NULL));
    strait_peer_remove(peer);
    fake_welcome(PROTOCOL_VERSION);
    until(find_got(MESSAGE_START, 0) != NULL);
    ck_assert_uint_eq(STRAIT_MISMATCH_CODEBOOK, find_got(MESSAGE_START, 0)->start.mismatch);
    peer = import_peer(pool);
    ck_assert_uint_eq(0, strait_peer_check(pool, peer));
}

int main(void)
{
    return client_main("client_pools");
}
