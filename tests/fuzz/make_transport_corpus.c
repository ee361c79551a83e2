/* make_transport_corpus FOLDER: writes the seeds of the targets of transport/ to FOLDER/TARGET/. The same bytes on
 * every machine. */
#include <string.h>

#include "tests/fuzz/seed.h"
#include "tests/support.h"
#include "transport/nccl_wire.h"

static const char *folder;

static void write_seed(const char *target, const char *name, const void *bytes, size_t size)
{
    seed_write(folder, target, name, bytes, size);
}

static void write_address(const char *name, size_t carrier_size)
{
    uint8_t carrier[64] = "where the carrier listens", bytes[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = 22809,
                                   .process = {1, 2, 3},
                                   .identity = {4, 5, 6},
                                   .carrier = carrier,
                                   .carrier_size = carrier_size};
    nccl_address_write(bytes, &address);
    write_seed("nccl", name, bytes, NCCL_ADDRESS_FIXED + carrier_size);
}

static void write_message(const char *name, uint32_t type, uint64_t id, uint64_t value, uint8_t payload)
{
    uint8_t bytes[1 + NCCL_MESSAGE_BYTES] = {payload};
    struct nccl_message message = {.type = type, .id = id, .value = value};
    nccl_message_write(bytes + 1, &message);
    write_seed("nccl", name, bytes, sizeof(bytes));
}

int main(int argc, char **argv)
{
    require(argc == 2);
    folder = argv[1];
    write_address("address", 48);
    write_address("address-empty", 0);
    write_message("hello", NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
    write_message("ready", NCCL_READY, 0, 0, 0);
    write_message("chunk", NCCL_CHUNK, 7, 4 << 20, 48);
    write_message("chunk-header-too-long", NCCL_CHUNK, 7, 4 << 20, TRANSPORT_HEADER_MAX + 1);
    write_message("go", NCCL_GO, 7, 3, 0);
    write_message("refused", NCCL_REFUSED, 7, 0, 0);
    write_message("type-unknown", NCCL_REFUSED + 1, 7, 0, 0);
    return 0;
}
