/* Foreign bytes as what the ends of an NCCL link tell each other: an address, as it is and with size and sum that fit,
 * and a message with any payload. */
#include <string.h>

#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "transport/nccl_wire.h"

static void check_address(const uint8_t *data, size_t size)
{
    struct nccl_address address;
    uint8_t back[LINK_ADDRESS_MAX];
    if (nccl_address_read(data, size, &address) != STRAIT_OK)
        return;
    require(address.carrier_size <= NCCL_ADDRESS_CARRIER && size == NCCL_ADDRESS_FIXED + address.carrier_size);
    require(address.carrier + address.carrier_size <= data + size);
    nccl_address_write(back, &address);
    require(memcmp(back, data, size) == 0);
}

static uint64_t sum_of(const uint8_t *src, size_t size)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ src[i]) * 0x100000001b3u;
    return sum;
}

/* The sum would stop nearly every change. */
static void check_repaired(const uint8_t *data, size_t size)
{
    if (size < NCCL_ADDRESS_FIXED || size > LINK_ADDRESS_MAX)
        return;
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data, size);
    store_le16(copy + 40, (uint16_t)(size - NCCL_ADDRESS_FIXED));
    store_le64(copy + size - 8, sum_of(copy, size - 8));
    check_address(copy, size);
    free(copy);
}

static void check_message(const uint8_t *data, size_t size, size_t payload)
{
    struct nccl_message message;
    uint8_t back[NCCL_MESSAGE_BYTES];
    if (nccl_message_read(data, size, payload, &message) != STRAIT_OK)
        return;
    require(size == NCCL_MESSAGE_BYTES && payload <= NCCL_MESSAGE_PAYLOAD);
    require(message.type >= NCCL_HELLO && message.type <= NCCL_REFUSED);
    nccl_message_write(back, &message);
    require(memcmp(back, data, size) == 0);
}

/* The first byte of a message is the size of its payload. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_address(data, size);
    check_repaired(data, size);
    if (size > 0)
        check_message(data + 1, size - 1, data[0]);
    return 0;
}
