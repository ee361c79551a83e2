/* How two daemons introduce themselves to each other. */
#include "proto/fields.h"

static enum strait_status peer_hello_check(const void *plain)
{
    const struct message_peer_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

#define PEER_HELLO struct message_peer_hello, Strait__Wire__PeerHello
static const struct field peer_hello_fields[] = {
    U32(PEER_HELLO, version, 1, UINT32_MAX),
    U32(PEER_HELLO, version_min, 1, UINT32_MAX),
    U64(PEER_HELLO, node),
    NOT_ZERO(PEER_HELLO, incarnation),
    BOOL(PEER_HELLO, secret),
    BYTES(PEER_HELLO, nonce, NONCE_BYTES, NONCE_BYTES),
    ADDRESS(PEER_HELLO, address),
    ADDRESS(PEER_HELLO, dialled),
};
const struct layout peer_hello_layout = LAYOUT(PEER_HELLO, peer_hello, peer_hello_fields, peer_hello_check);

#define PEER_PROOF struct message_peer_proof, Strait__Wire__PeerProof
static const struct field peer_proof_fields[] = {
    BYTES(PEER_PROOF, mac, MAC_BYTES, MAC_BYTES),
};
const struct layout peer_proof_layout = LAYOUT(PEER_PROOF, peer_proof, peer_proof_fields, NULL);

#define PEER_LINKS struct message_peer_links, Strait__Wire__PeerLinks
static const struct field peer_links_fields[] = {
    U64(PEER_LINKS, token),
    BYTES(PEER_LINKS, host, 0, MESSAGE_ADDRESS_MAX),
    NAME(PEER_LINKS, shm_path, MESSAGE_ADDRESS_MAX),
    NAME(PEER_LINKS, transport, MESSAGE_ADDRESS_MAX),
    BYTES(PEER_LINKS, ucx_address, 0, MESSAGE_UCX_ADDRESS_MAX),
    BYTES_OR_NONE(PEER_LINKS, codebook_id, CODEBOOK_ID_BYTES),
    U32(PEER_LINKS, slot_bytes, 0, UINT32_MAX),
    U32(PEER_LINKS, slot_count, 0, UINT32_MAX),
};
const struct layout peer_links_layout = LAYOUT(PEER_LINKS, peer_links, peer_links_fields, NULL);

#define HEARTBEAT struct message_heartbeat, Strait__Wire__Heartbeat
static const struct field heartbeat_fields[] = {
    U64(HEARTBEAT, sequence),
    U64(HEARTBEAT, echo),
};
const struct layout heartbeat_layout = LAYOUT(HEARTBEAT, heartbeat, heartbeat_fields, NULL);

static enum strait_status arena_check(const void *plain)
{
    const struct message_arena *arena = plain;
    return corrupt_unless((uint64_t)arena->first_slot + arena->slot_count <= UINT32_MAX);
}

#define ARENA struct message_arena, Strait__Wire__Arena
static const struct field arena_fields[] = {
    U32(ARENA, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(ARENA, first_slot, 1, UINT32_MAX),
    U32(ARENA, slot_bytes, 4096, UINT32_MAX),
    U32(ARENA, slot_count, 1, UINT32_MAX),
    BYTES_OR_NONE(ARENA, ipc, MESSAGE_MEMORY_IPC),
    BOOL(ARENA, nccl),
    BOOL(ARENA, ucx),
};
const struct layout arena_layout = LAYOUT(ARENA, arena, arena_fields, arena_check);

#define REACH struct message_reach, Strait__Wire__Reach
static const struct field reach_fields[] = {
    POOL(REACH, pool),
    U64(REACH, devices),
};
const struct layout reach_layout = LAYOUT(REACH, reach, reach_fields, NULL);

static enum strait_status gpu_link_check(const void *plain)
{
    const struct message_gpu_link *link = plain;
    return corrupt_unless(link->address.size == 0 || link->why.size == 0);
}

#define GPU_LINK struct message_gpu_link, Strait__Wire__GpuLink
static const struct field gpu_link_fields[] = {
    U32(GPU_LINK, device, 0, MESSAGE_DEVICES_MAX - 1),
    U32(GPU_LINK, peer_device, 0, MESSAGE_DEVICES_MAX - 1),
    BYTES(GPU_LINK, address, 0, MESSAGE_UCX_ADDRESS_MAX),
    TEXT(GPU_LINK, why),
    U32(GPU_LINK, by, 0, UINT32_MAX),
};
const struct layout gpu_link_layout = LAYOUT(GPU_LINK, gpu_link, gpu_link_fields, gpu_link_check);

#define SHM_HELLO struct message_shm_hello, Strait__Wire__ShmHello
static const struct field shm_hello_fields[] = {
    U64(SHM_HELLO, token),
    U64(SHM_HELLO, node),
    U32(SHM_HELLO, slot_bytes, 0, UINT32_MAX),
    U32(SHM_HELLO, slot_count, 0, UINT32_MAX),
};
const struct layout shm_hello_layout = LAYOUT(SHM_HELLO, shm_hello, shm_hello_fields, NULL);
