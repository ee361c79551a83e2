/* Layout of the public structs of strait.h where pointers have 64 bits: programs that were built against it depend on
 * it. What is added takes reserved bytes, or the end of a struct that has a size; a change of what is here needs
 * another soname. */
#include <stddef.h>

#include <strait/strait.h>

#if UINTPTR_MAX == UINT64_MAX
#define SIZE(name, bytes)      _Static_assert(sizeof(struct strait_##name) == (bytes), #name)
#define FIELD(name, field, at) _Static_assert(offsetof(struct strait_##name, field) == (at), #name "." #field)

SIZE(client_config, 24);
FIELD(client_config, embedded, 16);
SIZE(memory, 24);
FIELD(memory, size, 16);
SIZE(pool_region, 184);
FIELD(pool_region, ipc, 24);
FIELD(pool_region, offset, 88);
FIELD(pool_region, element, 124);
FIELD(pool_region, tokens, 148);
FIELD(pool_region, heads_total, 156);
FIELD(pool_region, reserved, 160);
SIZE(page_list, 24);
FIELD(page_list, ids, 16);
SIZE(failed_page, 8);
SIZE(event, 168);
FIELD(event, context, 24);
FIELD(event, drained, 40);
FIELD(event, status, 48);
FIELD(event, failed_count, 72);
FIELD(event, key_size, 104);
FIELD(event, peer, 128);
FIELD(event, landed, 136);
FIELD(event, reserved, 152);
SIZE(progress, 32);
FIELD(progress, layers_landed, 12);
FIELD(progress, pages_landed, 16);
FIELD(progress, reserved, 20);
FIELD(pool_params, compat, 24);
FIELD(expect_params, traceparent, 56);
FIELD(expect_params, tell_pages, 68);
FIELD(expect_params, begins_within, 69);
SIZE(expect_params, 72);
FIELD(offer_params, traceparent, 80);
FIELD(append_params, later, 64);
FIELD(start_params, direction, 8);
FIELD(start_params, consumers, 32);
FIELD(fence_params, context, 24);
FIELD(read_params, traceparent, 48);
FIELD(read_params, tell_pages, 56);
#endif
