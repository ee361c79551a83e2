#include "transport/ucx_address.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "internal/bytes.h"

#define SUMMED 40u

static const uint8_t magic[4] = {'U', 'C', 'X', '1'};

/* Detects a blob that was cut or mixed up on its way; trust comes from the connection that brought it. */
static uint64_t sum_of(const uint8_t *src)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < SUMMED; i++)
        sum = (sum ^ src[i]) * 0x100000001b3u;
    return sum;
}

static void write_v4(uint8_t *dst, const struct sockaddr_in *in)
{
    store_le16(dst + 4, 4);
    store_le16(dst + 6, ntohs(in->sin_port));
    memcpy(dst + 16, &in->sin_addr, sizeof(in->sin_addr));
}

static void write_v6(uint8_t *dst, const struct sockaddr_in6 *in)
{
    store_le16(dst + 4, 6);
    store_le16(dst + 6, ntohs(in->sin6_port));
    memcpy(dst + 16, &in->sin6_addr, sizeof(in->sin6_addr));
    store_le32(dst + 32, in->sin6_scope_id);
}

void ucx_address_write(uint8_t dst[UCX_ADDRESS_BYTES], const struct ucx_address *address)
{
    memset(dst, 0, UCX_ADDRESS_BYTES);
    memcpy(dst, magic, sizeof(magic));
    if (address->at.ss_family == AF_INET6)
        write_v6(dst, (const struct sockaddr_in6 *)&address->at);
    else
        write_v4(dst, (const struct sockaddr_in *)&address->at);
    store_le64(dst + 8, address->token);
    store_le64(dst + SUMMED, sum_of(dst));
}

static void read_v4(const uint8_t *src, struct ucx_address *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(load_le16(src + 6))};
    memcpy(&in.sin_addr, src + 16, sizeof(in.sin_addr));
    memcpy(&address->at, &in, sizeof(in));
    address->at_size = sizeof(in);
}

static void read_v6(const uint8_t *src, struct ucx_address *address)
{
    struct sockaddr_in6 in = {
        .sin6_family = AF_INET6, .sin6_port = htons(load_le16(src + 6)), .sin6_scope_id = load_le32(src + 32)};
    memcpy(&in.sin6_addr, src + 16, sizeof(in.sin6_addr));
    memcpy(&address->at, &in, sizeof(in));
    address->at_size = sizeof(in);
}

static bool is_sound(const uint8_t *src)
{
    return memcmp(src, magic, sizeof(magic)) == 0 && load_le64(src + SUMMED) == sum_of(src) &&
           load_le64(src + 8) != 0 && load_le16(src + 6) != 0 && load_le32(src + 36) == 0;
}

enum strait_status ucx_address_read(const void *src, size_t size, struct ucx_address *address)
{
    const uint8_t *bytes = src;
    if (src == NULL || size != UCX_ADDRESS_BYTES)
        return STRAIT_ERR_INVALID;
    uint16_t version = load_le16(bytes + 4);
    if (!is_sound(bytes) || (version != 4 && version != 6))
        return STRAIT_ERR_CORRUPT;
    memset(address, 0, sizeof(*address));
    if (version == 4)
        read_v4(bytes, address);
    else
        read_v6(bytes, address);
    address->token = load_le64(bytes + 8);
    return STRAIT_OK;
}
