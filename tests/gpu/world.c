/* Daemons, clients and pools of the scenes on real GPUs, and device memory that is exported as a descriptor. */
#include "tests/gpu/world.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/chaos/inject.h"

static void *entry(const char *name, unsigned version)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult status;
    require(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status) == cudaSuccess);
    require(found != NULL);
    return found;
}

#define ENTRY(name) ((PFN_##name##_v10020)(uintptr_t)entry(#name, 10020))

/* At least *size bytes, which become what was taken, mapped for all that the process does with this device. *fd: the
 * exported descriptor. */
static uint8_t *vmm_alloc(int device, size_t *size, int *fd)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    const CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    require(ENTRY(cuMemGetAllocationGranularity)(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    *size = (*size + unit - 1) / unit * unit;
    require(ENTRY(cuMemCreate)(&handle, *size, &properties, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemAddressReserve)(&base, *size, 0, 0, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemMap)(base, *size, 0, handle, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemSetAccess)(base, *size, &access, 1) == CUDA_SUCCESS);
    require(ENTRY(cuMemExportToShareableHandle)(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    return (uint8_t *)(uintptr_t)base;
}

const char *straitd_path = "straitd";
char world_folder[64];

uint64_t patience(void)
{
    return getenv("GPU_TEST_UNDER") != NULL ? 10 : 1;
}

void world_begin(void)
{
    uint8_t ranking[1][256];
    struct strait_codebook *codebook;
    for (unsigned i = 0; i < 256; i++)
        ranking[0][i] = (uint8_t)(0x7f - i);
    require(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &codebook) == STRAIT_OK);
    require(folder_make(world_folder, "gpu") && codebook_write(world_folder, "codebook", codebook));
    strait_codebook_destroy(codebook);
}

void world_end(void)
{
    folder_remove(world_folder);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

enum { ARGUMENTS = 32 };

static uint32_t add_words(const char **arguments, char *words, uint32_t most)
{
    uint32_t count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word != NULL && count < most; word = strtok_r(NULL, " ", &rest))
        arguments[count++] = word;
    return count;
}

static void spawn_daemon(struct daemon_process *daemon)
{
    char options[5][160], under[512], more[512], faults[128];
    const char *arguments[ARGUMENTS] = {NULL};
    const char *prefix = getenv("GPU_TEST_UNDER"), *all = getenv("GPU_TEST_OPTIONS");
    snprintf(under, sizeof(under), "%s", prefix != NULL ? prefix : "");
    snprintf(more, sizeof(more), "%s", all != NULL ? all : "");
    snprintf(options[0], sizeof(options[0]), "--socket=%s", daemon->socket);
    snprintf(options[1], sizeof(options[1]), "--transports=%s", daemon->transport);
    snprintf(options[2], sizeof(options[2]), "--coding=%s", daemon->coding);
    snprintf(options[3], sizeof(options[3]), "--codebook=%s/codebook", world_folder);
    snprintf(options[4], sizeof(options[4]), "--log-level=%s", getenv("GPU_TEST_LOG") != NULL ? "debug" : "error");
    const char *const fixed[] = {straitd_path,
                                 options[0],
                                 options[1],
                                 options[2],
                                 options[3],
                                 options[4],
                                 "--listen=127.0.0.1:0",
                                 "--metrics=",
                                 "--ucx-options=tls=tcp"};
    uint32_t count = add_words(arguments, under, 8);
    memcpy(arguments + count, fixed, sizeof(fixed));
    count += COUNT(fixed);
    count += add_words(arguments + count, more, 8);
    arguments[count] = daemon->more;
    snprintf(faults, sizeof(faults), "%s.faults", daemon->socket);
    struct daemon_start start = {.arguments = arguments};
    if (daemon->faults != NULL) {
        start.faults = faults;
        start.plugin = getenv("GPU_TEST_PLUGIN");
        start.behind = getenv("GPU_TEST_BEHIND");
    }
    require((daemon->pid = daemon_spawn(&start)) > 0);
}

static void prepare(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                    const char *more)
{
    const char *other = getenv("GPU_TEST_TRANSPORTS");
    *daemon = (struct daemon_process){.transport = transport, .coding = coding, .more = more};
    if (other != NULL && strcmp(transport, "shm") == 0)
        daemon->transport = other;
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/%s", world_folder, name);
}

void daemon_start(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                  const char *more)
{
    prepare(daemon, name, transport, coding, more);
    spawn_daemon(daemon);
}

bool daemon_start_faulty(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                         const char *more)
{
    char path[128];
    if (getenv("GPU_TEST_PLUGIN") == NULL || getenv("GPU_TEST_BEHIND") == NULL) {
        printf("  left out: GPU_TEST_PLUGIN and GPU_TEST_BEHIND do not name the plugins\n");
        return false;
    }
    prepare(daemon, name, transport, coding, more);
    snprintf(path, sizeof(path), "%s.faults", daemon->socket);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && ftruncate(fd, sizeof(struct chaos_shared)) == 0);
    struct chaos_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(shared != MAP_FAILED);
    close(fd);
    daemon->faults = &shared->sides[0];
    spawn_daemon(daemon);
    return true;
}

void daemon_restart(struct daemon_process *daemon)
{
    spawn_daemon(daemon);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void daemon_kill(struct daemon_process *daemon)
{
    kill(daemon->pid, SIGKILL);
    (void)process_reap(daemon->pid);
}

/* Who listens at its socket: not the process that was started, when that runs it under a tool. */
static pid_t pid_of(const struct daemon_process *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0);
    for (int i = 0; connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0; i++) {
        require(i < 2000); /* it may have been started just now */
        usleep(10000);
    }
    require(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0);
    close(fd);
    return peer.pid;
}

int daemon_ended(struct daemon_process *daemon, uint32_t ms)
{
    int status = 0;
    pid_t ended = 0;
    for (uint64_t until = now_ns() + (uint64_t)ms * 1000000u * patience(); ended == 0 && now_ns() < until; usleep(1000))
        ended = waitpid(daemon->pid, &status, WNOHANG);
    require(ended == daemon->pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

void daemon_stop(struct daemon_process *daemon)
{
    kill(pid_of(daemon), SIGTERM);
    int status = process_reap(daemon->pid);
    if (status != 0)
        fprintf(stderr, "%s ended with status %x\n", daemon->socket, status);
    require(status == 0);
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

static struct gpu_pool *pools[64];
static int pool_count;

struct strait_client *client_open(const struct daemon_process *daemon)
{
    struct strait_client *client;
    struct strait_client_config config = {.size = sizeof(config), .socket = daemon->socket};
    require(strait_client_open(&config, &client) == STRAIT_OK);
    return client;
}

/* Daemons of one host find each other's memory by way of their sockets: it has one, too. */
struct strait_client *client_embedded(const char *coding)
{
    static unsigned count;
    char options[512];
    struct strait_client *client;
    struct strait_client_config config = {.size = sizeof(config), .embedded = options};
    snprintf(options, sizeof(options),
             "transports = shm\ncoding = %s\ncodebook = %s/codebook\nlisten = 127.0.0.1:0\nsocket = %s/embedded-%u\n"
             "arena-bytes = 64M\n",
             coding, world_folder, world_folder, count++);
    require(strait_client_open(&config, &client) == STRAIT_OK);
    return client;
}

const struct pool_shape small = {.regions = 8, .pages = 96, .page_bytes = 32768, .gap = 64};
const struct pool_shape medium = {.regions = 16, .pages = 192, .page_bytes = 32768, .gap = 64};
const struct pool_shape large = {.regions = 32, .pages = 256, .page_bytes = 32768, .gap = 64};

struct pool_shape on(struct pool_shape shape, int device, enum strait_handle handle)
{
    shape.device = device;
    shape.handle = handle;
    return shape;
}

int last_device(void)
{
    int count;
    require_cuda(cudaGetDeviceCount(&count));
    return count - 1;
}

static void take_memory(struct gpu_pool *pool)
{
    if (pool->shape.device < 0) {
        require(strait_alloc(pool->size, &pool->host) == STRAIT_OK);
        pool->memory = pool->host.base;
        pool->fd = pool->host.fd;
    } else if (pool->shape.handle != STRAIT_HANDLE_CUDA_VMM && !pool->shape.exportable) {
        require_cuda(cudaSetDevice(pool->shape.device));
        require_cuda(cudaMalloc((void **)&pool->memory, pool->size));
    } else {
        require_cuda(cudaSetDevice(pool->shape.device));
        require_cuda(cudaFree(NULL));
        pool->memory = vmm_alloc(pool->shape.device, &pool->size, &pool->fd);
    }
}

uint8_t *pool_page(const struct gpu_pool *pool, uint8_t *base, uint32_t region, uint32_t id)
{
    return base + region * pool->region_bytes + id * pool->page_stride;
}

static struct strait_pool_region region_of(const struct gpu_pool *pool, uint32_t r)
{
    const struct pool_shape *s = &pool->shape;
    struct strait_pool_region region = {.handle = s->device < 0 ? STRAIT_HANDLE_MEMFD : s->handle,
                                        .device = s->device,
                                        .fd = pool->fd,
                                        .pointer = pool->memory,
                                        .offset = r * pool->region_bytes,
                                        .page_stride = pool->page_stride,
                                        .row_stride = pool->row_stride,
                                        .page_count = s->pages,
                                        .rows = s->rows,
                                        .row_bytes = s->page_bytes / s->rows,
                                        .element = s->element != 0 ? s->element : STRAIT_ELEMENT_BF16,
                                        .role = r % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                        .layer = (int32_t)r / 2};
    if (region.handle == STRAIT_HANDLE_CUDA_IPC) {
        cudaIpcMemHandle_t handle;
        require_cuda(cudaIpcGetMemHandle(&handle, pool->memory));
        memcpy(region.ipc, &handle, sizeof(handle));
    }
    return region;
}

/* Memory of the other kind can only be reached from its own device. */
static void use_device(const struct gpu_pool *pool)
{
    if (pool->shape.device >= 0)
        require_cuda(cudaSetDevice(pool->shape.device));
}

static void write_image(const struct gpu_pool *pool)
{
    use_device(pool);
    if (pool->shape.device < 0)
        memcpy(pool->memory, pool->image, pool->size);
    else
        require_cuda(cudaMemcpy(pool->memory, pool->image, pool->size, cudaMemcpyHostToDevice));
}

static void pool_read(const struct gpu_pool *pool, uint8_t *bytes)
{
    use_device(pool);
    if (pool->shape.device < 0)
        memcpy(bytes, pool->memory, pool->size);
    else
        require_cuda(cudaMemcpy(bytes, pool->memory, pool->size, cudaMemcpyDeviceToHost));
}

struct gpu_pool *pool_try(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device)
{
    struct gpu_pool *pool = calloc(1, sizeof(*pool));
    require(pool != NULL && pool_count < 64);
    pools[pool_count++] = pool;
    shape.rows = shape.rows == 0 ? 1 : shape.rows;
    pool->client = client;
    pool->shape = shape;
    pool->fd = -1;
    pool->row_stride = shape.page_bytes / shape.rows + shape.row_gap;
    pool->page_stride = shape.rows * pool->row_stride + shape.gap;
    pool->region_bytes = pool->page_stride * shape.pages;
    pool->size = pool->region_bytes * shape.regions;
    take_memory(pool);
    pool->image = malloc(pool->size);
    require(pool->image != NULL);
    memset(pool->image, CANARY, pool->size);
    write_image(pool);
    struct strait_pool_region *regions = calloc(shape.regions, sizeof(*regions));
    for (uint32_t r = 0; r < shape.regions; r++)
        regions[r] = region_of(pool, r);
    regions[shape.regions - 1].offset += claim_more;
    for (uint32_t r = 0; r < shape.regions; r++)
        regions[r].device += claim_device;
    const struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = shape.regions};
    require(strait_pool_register(client, &params, &pool->pool) == STRAIT_OK);
    free(regions);
    WAIT(&client, 1, pool->told, 20000);
    return pool;
}

struct gpu_pool *pool_make(struct strait_client *client, struct pool_shape shape)
{
    struct gpu_pool *pool = pool_try(client, shape, 0, 0);
    if (pool->status != STRAIT_OK)
        fprintf(stderr, "pool refused: %s\n", pool->text);
    require(pool->status == STRAIT_OK);
    return pool;
}

void pool_free(struct gpu_pool *pool)
{
    if (pool == NULL)
        return;
    int place = 0;
    while (pools[place] != pool)
        place++;
    pools[place] = pools[--pool_count];
    if (pool->shape.handle == STRAIT_HANDLE_CUDA_IPC)
        require_cuda(cudaFree(pool->memory));
    free(pool->image);
    free(pool);
}

/* Signs and mantissas are noise, exponents fall off from 0x7f. */
static void fill_page(struct rng *rng, uint8_t *page, uint32_t bytes)
{
    for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t noise = rng_next(rng), word = 0;
        for (int v = 0; v < 4; v++) {
            uint32_t bits = (uint32_t)(noise >> (16 * v)) & 0xffff;
            uint32_t exponent = 0x7f - (uint32_t)__builtin_ctz(bits >> 8 | 0x100);
            word |= (uint64_t)((bits & 0x80) << 8 | exponent << 7 | (bits & 0x7f)) << (16 * v);
        }
        memcpy(page + i, &word, 8);
    }
}

void pool_fill(struct gpu_pool *pool, uint64_t seed)
{
    struct rng rng = rng_init(seed);
    for (uint32_t r = 0; r < pool->shape.regions; r++)
        for (uint32_t p = 0; p < pool->shape.pages; p++)
            for (uint32_t row = 0; row < pool->shape.rows; row++)
                fill_page(&rng, pool_page(pool, pool->image, r, p) + row * pool->row_stride,
                          pool->shape.page_bytes / pool->shape.rows);
    write_image(pool);
}

void pool_overwrite(struct gpu_pool *pool)
{
    memset(pool->image, CANARY, pool->size);
    use_device(pool);
    if (pool->shape.device < 0)
        memset(pool->memory, CANARY, pool->size);
    else
        require_cuda(cudaMemset(pool->memory, CANARY, pool->size));
    if (pool->shape.device >= 0)
        require_cuda(cudaDeviceSynchronize());
}

/* Takes over what the pages hold now. */
static void forget_pages(const struct gpu_pool *pool, const uint8_t *bytes)
{
    for (uint32_t r = 0; r < pool->shape.regions; r++)
        for (uint32_t p = 0; p < pool->shape.pages; p++)
            for (uint32_t row = 0; row < pool->shape.rows; row++) {
                size_t at = (size_t)(pool_page(pool, pool->image, r, p) - pool->image) + row * pool->row_stride;
                memcpy(pool->image + at, bytes + at, pool->shape.page_bytes / pool->shape.rows);
            }
}

static void check_bytes(const struct gpu_pool *pool, bool gaps_only)
{
    uint8_t *bytes = malloc(pool->size);
    require(bytes != NULL);
    pool_read(pool, bytes);
    if (gaps_only)
        forget_pages(pool, bytes);
    size_t at = 0;
    while (at < pool->size && bytes[at] == pool->image[at])
        at++;
    if (at < pool->size)
        fprintf(stderr, "device %d: byte %zu of %zu is %02x, not %02x\n", pool->shape.device, at, pool->size, bytes[at],
                pool->image[at]);
    require(at == pool->size);
    free(bytes);
}

void refused(struct strait_client *client, struct pool_shape shape, uint64_t claim_more, int claim_device, int status)
{
    struct gpu_pool *pool = pool_try(client, shape, claim_more, claim_device);
    printf("  %s: %s\n", strait_status_string(pool->status), pool->text);
    require(pool->status == status);
}

void pool_check(const struct gpu_pool *pool)
{
    check_bytes(pool, false);
}

void pool_check_gaps(const struct gpu_pool *pool)
{
    check_bytes(pool, true);
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static char *stats;

static void on_event(const struct strait_event *event)
{
    if (event->type == STRAIT_EVENT_POOL) {
        for (int i = 0; i < pool_count; i++)
            if (pools[i]->pool == event->pool) {
                pools[i]->told = true;
                pools[i]->status = event->status;
                snprintf(pools[i]->text, sizeof(pools[i]->text), "%s", event->text);
            }
        return;
    }
    if (event->type == STRAIT_EVENT_STATS) {
        free(stats);
        stats = strndup(event->data, event->data_size);
    }
    if (event->type == STRAIT_EVENT_FENCED)
        *(bool *)event->context = true;
    struct flow *flow = event->context;
    if (flow == NULL || event->transfer == NULL)
        return;
    if (event->type == STRAIT_EVENT_DRAINED)
        flow->drained = true;
    if (flow->drained && flow->drained_at == 0)
        flow->drained_at = now_ns();
    if (event->type != STRAIT_EVENT_STATE)
        return;
    flow->state = event->state;
    flow->moved |= event->state == STRAIT_TRANSFERRING;
    if (event->state != STRAIT_FAILED && event->state != STRAIT_DONE)
        return;
    flow->decided = true;
    flow->decided_at = now_ns();
    flow->reason = event->reason;
    flow->drained |= event->drained || event->state == STRAIT_DONE;
    flow->drained_at = flow->drained ? flow->decided_at : 0;
    snprintf(flow->text, sizeof(flow->text), "%s", event->text);
}

void pump(struct strait_client *const *clients, int count, int ms)
{
    struct pollfd polled[8];
    struct strait_event events[32];
    for (int i = 0; i < count; i++)
        polled[i] = (struct pollfd){.fd = strait_client_fd(clients[i]), .events = POLLIN};
    poll(polled, (nfds_t)count, ms);
    for (int i = 0; i < count; i++) {
        uint32_t got = strait_poll(clients[i], events, 32);
        for (uint32_t e = 0; e < got; e++)
            on_event(&events[e]);
    }
}

const char *client_stats(struct strait_client *client)
{
    free(stats);
    stats = NULL;
    require(strait_stats(client) == STRAIT_OK);
    WAIT(&client, 1, stats != NULL, 5000);
    return stats;
}

double json_number(const char *json, const char *object, const char *name)
{
    const char *names[] = {object, name};
    char quoted[64];
    for (int i = 0; i < COUNT(names); i++) {
        if (names[i] == NULL)
            continue;
        snprintf(quoted, sizeof(quoted), "\"%s\":", names[i]);
        json = strstr(json, quoted);
        require(json != NULL);
        json += strlen(quoted);
    }
    return strtod(json, NULL);
}

struct strait_peer *pool_peer(struct gpu_pool *of, struct strait_client *client)
{
    uint8_t blob[65536];
    size_t size;
    struct strait_peer *peer;
    WAIT(&of->client, 1, strait_client_connected(of->client), 5000);
    require(strait_pool_export(of->pool, blob, sizeof(blob), &size) == STRAIT_OK);
    require(strait_peer_import(client, blob, size, &peer) == STRAIT_OK);
    return peer;
}

void flow_offer(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                bool later)
{
    *flow = (struct flow){.pool = pool};
    struct strait_page_list list = {.count = count, .ids = ids};
    struct strait_offer_params params = {.size = sizeof(params),
                                         .key = key,
                                         .key_size = strlen(key),
                                         .lists = &list,
                                         .list_count = 1,
                                         .lease_ms = 20000 * (uint32_t)patience(),
                                         .later = later,
                                         .last = !later,
                                         .context = flow};
    require(strait_offer(pool->pool, &params, &flow->transfer) == STRAIT_OK);
}

void flow_expect(struct flow *flow, struct gpu_pool *pool, const char *key, const uint32_t *ids, uint32_t count,
                 uint32_t deadline_ms)
{
    *flow = (struct flow){.pool = pool};
    struct strait_page_list list = {.count = count, .ids = ids};
    struct strait_expect_params params = {.size = sizeof(params),
                                          .key = key,
                                          .key_size = strlen(key),
                                          .lists = &list,
                                          .list_count = 1,
                                          .deadline_ms =
                                              (deadline_ms != 0 ? deadline_ms : 20000) * (uint32_t)patience(),
                                          .context = flow};
    require(strait_expect(pool->pool, &params, &flow->transfer) == STRAIT_OK);
}

void flow_read(struct flow *flow, struct gpu_pool *pool, const struct strait_peer *peer, const uint32_t *ids,
               const uint32_t *peer_ids, uint32_t count)
{
    *flow = (struct flow){.pool = pool};
    const struct strait_page_list list = {.count = count, .ids = ids}, peer_list = {.count = count, .ids = peer_ids};
    struct strait_read_params params = {.size = sizeof(params),
                                        .lists = &list,
                                        .list_count = 1,
                                        .peer_lists = &peer_list,
                                        .peer_list_count = 1,
                                        .deadline_ms = 20000 * (uint32_t)patience(),
                                        .context = flow};
    require(strait_read(pool->pool, peer, &params, &flow->transfer) == STRAIT_OK);
}

void request_begin(struct request *r, const char *key)
{
    struct strait_peer *peer = pool_peer(r->source, r->sink->client);
    flow_offer(&r->offer, r->source, key, NULL, r->source->shape.pages, r->later);
    flow_expect(&r->expect, r->sink, key, NULL, r->sink->shape.pages, r->deadline_ms);
    require(strait_start(r->expect.transfer, peer, NULL) == STRAIT_OK);
    strait_peer_remove(peer);
}

bool request_over(const struct request *r)
{
    return r->offer.decided && r->offer.drained && r->expect.decided && r->expect.drained;
}

static void print_flow(const char *side, const struct flow *flow, const char *end)
{
    printf(" %s %s (%s%s%s)%s", side, strait_state_string(flow->state), strait_reason_string(flow->reason),
           flow->text[0] != 0 ? ": " : "", flow->text, end);
}

void request_print(const struct request *r, const char *what)
{
    printf("  %s:", what);
    print_flow("source", &r->offer, ",");
    print_flow("sink", &r->expect, "\n");
}

void request_end(struct request *r)
{
    strait_release(r->offer.transfer);
    strait_release(r->expect.transfer);
}

static uint32_t *shuffled(struct rng *rng, uint32_t count)
{
    uint32_t *ids = malloc(count * sizeof(*ids));
    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = rng_below(rng, i), id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
    return ids;
}

static void imagine(const struct gpu_pool *source, const uint32_t *from, struct gpu_pool *sink, const uint32_t *to)
{
    uint32_t row_bytes = source->shape.page_bytes / source->shape.rows;
    for (uint32_t r = 0; r < source->shape.regions; r++)
        for (uint32_t i = 0; i < source->shape.pages; i++)
            for (uint32_t row = 0; row < source->shape.rows; row++)
                memcpy(pool_page(sink, sink->image, r, to[i]) + row * sink->row_stride,
                       pool_page(source, source->image, r, from[i]) + row * source->row_stride, row_bytes);
}

static void report(const char *side, const struct flow *flow)
{
    if (flow->state != STRAIT_DONE)
        fprintf(stderr, "%s: %s, %s %s\n", side, strait_state_string(flow->state), strait_reason_string(flow->reason),
                flow->text);
}

static uint64_t move_pages(struct gpu_pool *source, struct gpu_pool *sink, uint64_t seed, bool check, bool reads)
{
    static uint32_t turn;
    char key[16];
    struct rng rng = rng_init(seed);
    uint32_t pages = source->shape.pages, *from = shuffled(&rng, pages), *to = shuffled(&rng, pages);
    struct strait_client *clients[] = {source->client, sink->client};
    struct strait_peer *peer = pool_peer(source, sink->client);
    struct flow offer = {.state = STRAIT_DONE, .decided = true}, expect;
    snprintf(key, sizeof(key), "%u", ++turn);
    if (reads) {
        require(strait_pool_serve(source->pool, NULL, 0) == STRAIT_OK);
    } else {
        flow_offer(&offer, source, key, from, pages, false);
        flow_expect(&expect, sink, key, to, pages, 0);
    }
    pump(clients, 2, 0);
    usleep(1000); /* both daemons have heard of it: what is timed is the transfer */
    uint64_t began = now_ns();
    if (reads)
        flow_read(&expect, sink, peer, to, from, pages);
    else
        require(strait_start(expect.transfer, peer, NULL) == STRAIT_OK);
    while (!expect.decided)
        pump(clients + 1, 1, 0); /* as an engine looks, that does not sleep */
    uint64_t ended = now_ns();
    WAIT(clients, 2, offer.decided && expect.decided, 25000);
    report("sink", &expect);
    report("source", &offer);
    require(expect.state == STRAIT_DONE && offer.state == STRAIT_DONE);
    if (check) {
        imagine(source, from, sink, to);
        pool_check(sink);
        pool_check(source);
    }
    if (!reads)
        strait_release(offer.transfer);
    strait_release(expect.transfer);
    strait_peer_remove(peer);
    free(from);
    free(to);
    return ended - began;
}

uint64_t move_all(struct gpu_pool *source, struct gpu_pool *sink, uint64_t seed, bool check)
{
    return move_pages(source, sink, seed, check, false);
}

uint64_t read_all(struct gpu_pool *source, struct gpu_pool *sink, uint64_t seed, bool check)
{
    return move_pages(source, sink, seed, check, true);
}

void move_among(struct gpu_pool *const *among, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            if (i == j)
                continue;
            pool_fill(among[i], (uint64_t)(i * 10 + j));
            move_all(among[i], among[j], (uint64_t)j, true);
        }
}

/* ---- Two daemons ------------------------------------------------------------------------------------------------- */

void pair_start(struct pair *pair, const char *transport, const char *coding, const char *more)
{
    *pair = (struct pair){.source = NULL};
    daemon_start(&pair->daemons[0], "a", transport, coding, more);
    daemon_start(&pair->daemons[1], "b", transport, coding, more);
}

void pair_connect(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        pair->clients[i] = client_open(&pair->daemons[i]);
}

void pair_pools(struct pair *pair, struct pool_shape shape, enum strait_handle handle)
{
    pair->source = pool_make(pair->clients[0], on(shape, 0, STRAIT_HANDLE_CUDA_IPC));
    pair->sink = pool_make(pair->clients[1], on(shape, last_device(), handle));
    pool_fill(pair->source, 1);
}

void pair_disconnect(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        strait_client_close(pair->clients[i]);
}

void pair_close(struct pair *pair)
{
    pair_disconnect(pair);
    for (int i = 0; i < 2; i++)
        daemon_stop(&pair->daemons[i]);
    pool_free(pair->source);
    pool_free(pair->sink);
}

void pair_kill(struct pair *pair, int victim, unsigned pause_us, uint32_t ms)
{
    char what[64];
    struct request r = {.source = pair->source, .sink = pair->sink};
    request_begin(&r, "lost");
    WAIT(pair->clients, 2, r.expect.moved || r.expect.decided, 5000);
    usleep(pause_us);
    daemon_kill(&pair->daemons[victim]);
    WAIT(pair->clients, 2, request_over(&r), ms);
    snprintf(what, sizeof(what), "killed %s daemon after %u us", victim == 0 ? "source's" : "sink's", pause_us);
    request_print(&r, what);
    pool_check(pair->source);
    request_end(&r);
}

void pair_restart(struct pair *pair, int victim)
{
    pair->source->told = pair->sink->told = false;
    daemon_restart(&pair->daemons[victim]);
    WAIT(pair->clients, 2, victim == 0 ? pair->source->told : pair->sink->told, 15000);
    require(pair->source->status == STRAIT_OK && pair->sink->status == STRAIT_OK);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static int compare_times(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

uint64_t median(uint64_t *times, int count)
{
    qsort(times, (size_t)count, sizeof(times[0]), compare_times);
    return times[count / 2];
}
