#include <stdbool.h>
#include <string.h>

#include "internal/bytes.h"
#include "transport/nccl_wire.h"

#define CARRIER_AT 48u

_Static_assert(NCCL_ID_BYTES <= NCCL_MESSAGE_PAYLOAD && TRANSPORT_HEADER_MAX <= NCCL_MESSAGE_PAYLOAD, "payloads fit");
_Static_assert(NCCL_MESSAGE_BYTES <= TRANSPORT_HEADER_MAX, "a message is a header of the carrier");

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static const uint8_t magic[4] = {'N', 'C', 'C', '1'};
static const uint8_t zeros[6];

/* Detects a blob that was cut or mixed up on its way; trust comes from the connection that brought it. */
static uint64_t sum_of(const uint8_t *src, size_t size)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ src[i]) * 0x100000001b3u;
    return sum;
}

void nccl_address_write(uint8_t *dst, const struct nccl_address *address)
{
    size_t summed = CARRIER_AT + address->carrier_size;
    memset(dst, 0, CARRIER_AT);
    memcpy(dst, magic, sizeof(magic));
    store_le32(dst + 4, address->library);
    memcpy(dst + 8, address->process, NCCL_PLACE_BYTES);
    memcpy(dst + 24, address->identity, NCCL_PLACE_BYTES);
    store_le16(dst + 40, (uint16_t)address->carrier_size);
    if (address->carrier_size > 0)
        memmove(dst + CARRIER_AT, address->carrier, address->carrier_size);
    store_le64(dst + summed, sum_of(dst, summed));
}

static bool is_sound(const uint8_t *src, size_t summed)
{
    return memcmp(src, magic, sizeof(magic)) == 0 && memcmp(src + 42, zeros, sizeof(zeros)) == 0 &&
           load_le64(src + summed) == sum_of(src, summed);
}

enum strait_status nccl_address_read(const void *src, size_t size, struct nccl_address *address)
{
    const uint8_t *bytes = src;
    if (src == NULL || size < NCCL_ADDRESS_FIXED || size > LINK_ADDRESS_MAX)
        return STRAIT_ERR_INVALID;
    size_t carrier_size = load_le16(bytes + 40);
    if (size != NCCL_ADDRESS_FIXED + carrier_size)
        return STRAIT_ERR_INVALID;
    if (!is_sound(bytes, CARRIER_AT + carrier_size))
        return STRAIT_ERR_CORRUPT;
    address->library = load_le32(bytes + 4);
    memcpy(address->process, bytes + 8, NCCL_PLACE_BYTES);
    memcpy(address->identity, bytes + 24, NCCL_PLACE_BYTES);
    address->carrier = bytes + CARRIER_AT;
    address->carrier_size = carrier_size;
    return STRAIT_OK;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

void nccl_message_write(uint8_t dst[NCCL_MESSAGE_BYTES], const struct nccl_message *message)
{
    store_le32(dst, message->type);
    store_le32(dst + 4, 0);
    store_le64(dst + 8, message->id);
    store_le64(dst + 16, message->value);
}

static bool is_whole(const struct nccl_message *message, size_t payload)
{
    switch (message->type) {
    case NCCL_HELLO:
        return message->id == 0 && message->value == NCCL_VERSION && payload == NCCL_ID_BYTES;
    case NCCL_READY:
        return message->id == 0 && message->value == 0 && payload == 0;
    case NCCL_CHUNK:
        return message->id != 0 && message->value <= SIZE_MAX && payload <= TRANSPORT_HEADER_MAX;
    case NCCL_GO:
        return message->id != 0 && payload == 0;
    case NCCL_REFUSED:
        return message->id != 0 && message->value == 0 && payload == 0;
    default:
        return false;
    }
}

enum strait_status nccl_message_read(const void *src, size_t size, size_t payload, struct nccl_message *message)
{
    const uint8_t *bytes = src;
    if (size != NCCL_MESSAGE_BYTES || load_le32(bytes + 4) != 0)
        return STRAIT_ERR_CORRUPT;
    message->type = load_le32(bytes);
    message->id = load_le64(bytes + 8);
    message->value = load_le64(bytes + 16);
    return is_whole(message, payload) ? STRAIT_OK : STRAIT_ERR_CORRUPT;
}
