#include "tests/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "internal/bytes.h"

#define NAP_NS  1000000u
#define LATE_NS 5000000u /* less is how timers are */
#define TRIES   100

struct count {
    _Atomic uint64_t late;
    _Atomic uint64_t napping; /* since then; 0 while `late` changes */
};

static struct count *shared;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t lateness(uint64_t since, uint64_t now)
{
    return now > since + NAP_NS + LATE_NS ? now - since - NAP_NS : 0;
}

static void __attribute__((noreturn)) watch(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(1);
    while (getppid() == parent) {
        uint64_t began = now_ns();
        atomic_store(&shared->napping, began);
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        atomic_store(&shared->napping, 0);
        atomic_fetch_add(&shared->late, lateness(began, now_ns()));
    }
    _exit(0);
}

bool machine_watch(void)
{
    void *memory = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    shared = memory;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        watch(parent);
    return pid > 0;
}

/* With the nap that the watcher has not come back from, counted once. */
uint64_t machine_late_ns(void)
{
    uint64_t late = 0;
    for (int i = 0; shared != NULL && i < TRIES; i++) {
        uint64_t napping = atomic_load(&shared->napping);
        late = atomic_load(&shared->late);
        if (napping != 0 && atomic_load(&shared->napping) == napping)
            return late + lateness(napping, now_ns());
        sched_yield();
    }
    return late;
}

double machine_late_s(void)
{
    return 1e-9 * (double)machine_late_ns();
}

double clock_s(void)
{
    return 1e-9 * (double)now_ns();
}

/* ---- Random numbers -------------------------------------------------------------------------------------------- */

uint64_t test_seed(void)
{
    const char *seed = getenv("STRAIT_TEST_SEED");
    return seed == NULL ? 20240611 : strtoull(seed, NULL, 0);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

struct rng rng_init(uint64_t stream)
{
    return (struct rng){.state = mix(test_seed()) + mix(stream + 1)};
}

uint64_t rng_next(struct rng *rng)
{
    return mix(rng->state += 0x9E3779B97F4A7C15u);
}

uint32_t rng_below(struct rng *rng, uint32_t limit)
{
    return (uint32_t)((rng_next(rng) >> 32) * limit >> 32);
}

void rng_fill(struct rng *rng, void *dst, size_t size)
{
    uint8_t *bytes = dst;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t eight = rng_next(rng);
        memcpy(bytes + i, &eight, size - i < 8 ? size - i : 8);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* Mappings are kept for the next guarded memory of that size: most of a test's time would be the kernel's otherwise. */
enum { MAPS_KEPT = 16 };
static _Thread_local struct guarded kept[MAPS_KEPT];

static bool take_kept(struct guarded *guarded)
{
    for (int i = 0; i < MAPS_KEPT; i++) {
        if (kept[i].map == NULL || kept[i].map_size != guarded->map_size)
            continue;
        guarded->map = kept[i].map;
        kept[i].map = NULL;
        return true;
    }
    return false;
}

static bool keep(const struct guarded *guarded)
{
    for (int i = 0; i < MAPS_KEPT; i++) {
        if (kept[i].map != NULL)
            continue;
        kept[i] = *guarded;
        return true;
    }
    return false;
}

void guarded_init(struct guarded *guarded, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), readable = (size + page - 1) / page * page;
    guarded->map_size = readable + 2 * page;
    if (!take_kept(guarded)) {
        guarded->map = mmap(NULL, guarded->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(guarded->map != MAP_FAILED);
        require(mprotect(guarded->map + page, readable, PROT_READ | PROT_WRITE) == 0);
    }
    memset(guarded->map + page, CANARY, readable);
    guarded->bytes = guarded->map + page + readable - size;
    guarded->size = size;
}

void guarded_fini(struct guarded *guarded)
{
    uint8_t *first = guarded->map + sysconf(_SC_PAGESIZE);
    require(is_filled(first, (size_t)(guarded->bytes - first), CANARY));
    if (guarded->map_size > 1 << 20 || !keep(guarded))
        munmap(guarded->map, guarded->map_size);
}

bool is_filled(const uint8_t *bytes, size_t size, uint8_t with)
{
    return size == 0 || (bytes[0] == with && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* ---- Descriptors ----------------------------------------------------------------------------------------------- */

int sealed_memory(size_t size, int seals, void **base)
{
    int fd = memfd_create("strait-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(fd >= 0 && ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    if (base == NULL)
        return fd;
    *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(*base != MAP_FAILED);
    return fd;
}

int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static struct rlimit descriptors;

/* No number below the lowest free one is free. */
void descriptors_forbid(void)
{
    int lowest = dup(0);
    require(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    struct rlimit none = {.rlim_cur = (rlim_t)lowest, .rlim_max = descriptors.rlim_max};
    require(setrlimit(RLIMIT_NOFILE, &none) == 0);
}

void descriptors_allow(void)
{
    require(setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
}

double process_cpu_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int unix_socket(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    require(strlen(path) < sizeof(address->sun_path));
    strcpy(address->sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    require(fd >= 0);
    return fd;
}

int unix_listen(const char *path)
{
    struct sockaddr_un address;
    int fd = unix_socket(path, &address);
    unlink(path);
    require(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 16) == 0);
    return fd;
}

int unix_dial(const char *path)
{
    struct sockaddr_un address;
    int fd = unix_socket(path, &address);
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        require(errno == EAGAIN); /* the backlog is full */
        usleep(1000);
    }
    return fd;
}

void send_with_rights(int fd, const void *bytes, size_t size, int passed, unsigned count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(16 * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (unsigned i = 0; i < count; i++)
            memcpy(CMSG_DATA(rights) + i * sizeof(int), &passed, sizeof(int));
    }
    require(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size);
}

/* ---- Variants -------------------------------------------------------------------------------------------------- */

#ifdef __aarch64__
const char *const variant_names[VARIANTS] = {"scalar", "neon"};
#else
const char *const variant_names[VARIANTS] = {"scalar", "avx2", "avx512"};
#endif

const struct strait_codec *variant(int index)
{
    return strait_codec_get(variant_names[index]);
}

int variant_count(void)
{
    int count = 0;
    while (count < VARIANTS && variant(count) != NULL)
        count++;
    for (int v = count; v < VARIANTS; v++)
        require(variant(v) == NULL);
    return count;
}

void print_conditions(void)
{
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    for (int v = 0; v < VARIANTS; v++)
        if (variant(v) == NULL)
            printf("%s: skipped, this build or processor lacks it\n", variant_names[v]);
    fflush(stdout);
}

/* ---- Codebooks and values -------------------------------------------------------------------------------------- */

/* Neighbours of `middle`, nearest first. */
static uint8_t neighbour(uint8_t middle, unsigned r)
{
    return (uint8_t)(r % 2 == 0 ? middle + r / 2 : middle - (r + 1) / 2);
}

void test_ranking(uint8_t ranking[256], uint32_t table)
{
    struct rng rng = {.state = 5}; /* not of the seed: a codebook has one id */
    for (unsigned r = 0; r < 256; r++) {
        const uint8_t choice[TEST_TABLES] = {neighbour(124, r), (uint8_t)(255 - r), (uint8_t)r, (uint8_t)r,
                                             (uint8_t)(neighbour(100, r / 2) + r % 2 * 128)};
        ranking[r] = choice[table];
    }
    for (unsigned r = 255; table == 2 && r > 0; r--) {
        unsigned other = rng_below(&rng, r + 1);
        uint8_t swapped = ranking[r];
        ranking[r] = ranking[other];
        ranking[other] = swapped;
    }
}

struct strait_codebook *test_codebook(void)
{
    uint8_t rankings[TEST_TABLES][256];
    struct strait_codebook *codebook = NULL;
    for (uint32_t t = 0; t < TEST_TABLES; t++)
        test_ranking(rankings[t], t);
    require(strait_codebook_create((const uint8_t(*)[256])rankings, NULL, TEST_TABLES, &codebook) == STRAIT_OK);
    return codebook;
}

uint16_t join_value(uint8_t sign_mantissa, uint8_t exponent)
{
    return (uint16_t)((sign_mantissa >> 7) << 15 | exponent << 7 | (sign_mantissa & 127));
}

void put_value(uint8_t *bytes, size_t index, uint16_t value)
{
    bytes[2 * index] = (uint8_t)value;
    bytes[2 * index + 1] = (uint8_t)(value >> 8);
}

uint16_t get_value(const uint8_t *bytes, size_t index)
{
    return (uint16_t)(bytes[2 * index] | bytes[2 * index + 1] << 8);
}

static uint32_t random_rank(struct rng *rng, enum pattern pattern, uint32_t share)
{
    static const uint8_t edges[] = {0, 2, 3, 5, 6, 15, 16, 20, 21, 255};
    uint64_t bits = rng_next(rng);
    switch (pattern) {
    case PATTERN_FALLING:
        return bits >> 54 == 0 ? bits & 255 : (uint32_t)__builtin_ctzll(bits | 1ull << 40);
    case PATTERN_LOW:
        return bits % 3;
    case PATTERN_MIDDLE:
        return bits % 6;
    case PATTERN_TOP16:
        return bits % 16;
    case PATTERN_RARE:
        return bits >> 59 == 0 ? bits & 255 : bits & 15;
    case PATTERN_EDGES:
        return edges[bits % sizeof(edges)];
    case PATTERN_HIGH:
        return 21 + bits % 235;
    case PATTERN_SHARE:
        return bits >> 56 < share ? 16 + bits % 240 : bits % 16;
    default:
        return bits & 255;
    }
}

static void fill_runs(struct rng *rng, const uint8_t ranking[256], uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count;) {
        size_t run = 1 + rng_below(rng, 200);
        uint8_t exponent = ranking[random_rank(rng, PATTERN_FALLING, 0)];
        bool zero = rng_below(rng, 4) == 0;
        for (; run > 0 && i < count; run--, i++)
            put_value(bytes, i, zero ? 0 : join_value((uint8_t)rng_next(rng), exponent));
    }
}

/* A block of n values, of which so many have ranks in tier 4 and in tier 3, or above 15; in any order or in this one.
 */
static void fill_ranks(struct rng *rng, const uint8_t ranking[256], uint8_t *bytes, size_t n, const size_t counts[2],
                       const uint8_t first_ranks[3])
{
    const bool in_order = rng_below(rng, 2) == 0;
    size_t left[2] = {counts[0], counts[1]};
    for (size_t i = 0; i < n; i++) {
        const size_t pick = in_order ? 0 : rng_below(rng, (uint32_t)(n - i));
        const int kind = pick < left[0] ? 0 : pick < left[0] + left[1] ? 1 : 2;
        const uint32_t end = kind == 0 ? 256 : first_ranks[kind - 1], begin = first_ranks[kind];
        if (kind < 2)
            left[kind]--;
        put_value(bytes, i, join_value((uint8_t)rng_next(rng), ranking[begin + rng_below(rng, end - begin)]));
    }
}

static void fill_limit(struct rng *rng, const uint8_t ranking[256], uint8_t *bytes, size_t count)
{
    static const uint8_t tiers[] = {21, 6, 0}, codes[] = {16, 0, 0};
    for (size_t at = 0; at < count; at += 8192) {
        const size_t n = count - at < 8192 ? count - at : 8192, off = rng_below(rng, 33);
        const bool tiered = rng_below(rng, 2) == 0;
        size_t counts[2] = {tiered ? rng_below(rng, (uint32_t)(n * 6 / 14 + 1)) : n / 6, 0};
        size_t *last = &counts[tiered ? 1 : 0];
        if (tiered) /* 14 bits beyond the first ten, 6 bits, of 6 that a raw block has */
            *last = (6 * n - 14 * counts[0]) / 6;
        *last = *last + off < 16 ? 0 : *last + off - 16;
        if (counts[0] + counts[1] > n)
            *last = n - (tiered ? counts[0] : 0);
        fill_ranks(rng, ranking, bytes + 2 * at, n, counts, tiered ? tiers : codes);
    }
}

static uint16_t fp16_value(struct rng *rng)
{
    uint64_t bits = rng_next(rng);
    uint32_t exponent = neighbour(12, (unsigned)__builtin_ctzll(bits >> 16 | 1u << 20));
    if (bits >> 57 == 0)
        exponent = bits >> 50 & 31;
    return (uint16_t)((bits & 0x83ff) | exponent << 10);
}

static uint16_t narrowed_value(struct rng *rng, uint32_t share)
{
    const uint16_t value = fp16_value(rng);
    return rng_below(rng, 2560) < share ? value & 0x83ff : value & 0xfff8;
}

static uint8_t fp8_value(struct rng *rng)
{
    uint64_t bits = rng_next(rng);
    uint32_t exponent = neighbour(11, (unsigned)__builtin_ctzll(bits >> 16 | 1u << 12)) & 15;
    if (bits >> 57 == 0)
        exponent = bits >> 50 & 15;
    return (uint8_t)((bits & 0x87) | exponent << 3);
}

static uint16_t spread_value(struct rng *rng)
{
    uint64_t bits = rng_next(rng);
    return join_value((uint8_t)bits, (uint8_t)(bits >> 57 == 0 ? (bits >> 8) % 100 : 100 + (bits >> 8) % 12));
}

/* Value i of a pattern that does not go by ranks. */
static uint16_t own_value(struct rng *rng, enum pattern pattern, const uint8_t ranking[256], uint32_t share, size_t i)
{
    if (pattern == PATTERN_FP16)
        return fp16_value(rng);
    if (pattern == PATTERN_NARROWED)
        return narrowed_value(rng, share);
    if (pattern == PATTERN_FP8)
        return (uint16_t)(fp8_value(rng) | fp8_value(rng) << 8);
    if (pattern == PATTERN_SPREAD)
        return spread_value(rng);
    uint8_t exponent = ranking[random_rank(rng, PATTERN_FALLING, 0)];
    return i % 2 == 0 ? 0 : join_value((uint8_t)rng_next(rng), exponent);
}

void fill_pattern(struct rng *rng, enum pattern pattern, const uint8_t ranking[256], uint8_t *bytes, size_t size)
{
    size_t count = size / 2;
    uint32_t share = rng_below(rng, 257);
    if (pattern == PATTERN_RUNS)
        fill_runs(rng, ranking, bytes, count);
    if (pattern == PATTERN_LIMIT)
        fill_limit(rng, ranking, bytes, count);
    for (size_t i = 0; pattern != PATTERN_RUNS && pattern != PATTERN_LIMIT && i < count; i++) {
        bool follows = pattern >= PATTERN_NEARLY && i > 0;
        if (pattern >= PATTERN_WIDENED && pattern <= PATTERN_SPREAD) {
            put_value(bytes, i, own_value(rng, pattern, ranking, share, i));
            continue;
        }
        uint8_t exponent = ranking[random_rank(rng, pattern, share)];
        put_value(bytes, i, follows ? get_value(bytes, 0) : join_value((uint8_t)rng_next(rng), exponent));
    }
    if (pattern == PATTERN_NEARLY && count > 0)
        bytes[2 * rng_below(rng, (uint32_t)count)] ^= 1;
    if (size % 2 != 0)
        bytes[size - 1] = (uint8_t)rng_next(rng);
}

/* ---- Page lists ------------------------------------------------------------------------------------------------ */

static uint64_t round_up(uint64_t size, uint64_t multiple)
{
    return (size + multiple - 1) / multiple * multiple;
}

/* The pieces that rows consist of: whole rows, unless there are columns. */
static uint32_t columns_of(const struct strait_region *region)
{
    return region->columns > 1 ? region->columns : 1;
}

static uint32_t pieces_of(const struct strait_region *region)
{
    return region->rows * columns_of(region);
}

static uint32_t piece_bytes(const struct strait_region *region)
{
    return region->row_bytes / columns_of(region);
}

/* Piece `piece` of a listed page, as an offset in memory. False when the page's id is out of range. */
static bool piece_at(const struct layout *layout, uint32_t index, uint32_t piece, size_t *offset)
{
    const struct strait_region *region = &layout->regions[index / layout->pages.id_count];
    uint32_t i = index % layout->pages.id_count, id = layout->pages.ids == NULL ? i : layout->pages.ids[i];
    const uint32_t columns = columns_of(region);
    *offset = (size_t)((uint8_t *)region->base - layout->memory.bytes + id * region->page_stride +
                       piece / columns * region->row_stride + (size_t)(piece % columns) * region->column_stride);
    return id < region->page_count;
}

/* Per byte of memory: whether it belongs to a listed page. */
static uint8_t *mark_listed(const struct layout *layout)
{
    size_t offset;
    uint8_t *listed = calloc(1, layout->memory.size);
    require(listed != NULL);
    for (uint32_t i = 0; i < layout_count(layout); i++) {
        const struct strait_region *region = &layout->regions[i / layout->pages.id_count];
        for (uint32_t piece = 0; piece < pieces_of(region) && piece_at(layout, i, piece, &offset); piece++)
            memset(listed + offset, 1, piece_bytes(region));
    }
    return listed;
}

static void find_gaps(struct layout *layout)
{
    size_t size = layout->memory.size, pieces = 0;
    uint8_t *listed = mark_listed(layout);
    for (uint32_t r = 0; r < layout->pages.region_count; r++)
        pieces += (size_t)pieces_of(&layout->regions[r]) * layout->pages.id_count;
    layout->gaps = calloc(pieces + 1, sizeof(*layout->gaps));
    layout->gap_count = 0;
    require(layout->gaps != NULL);
    for (size_t begin = 0, end; begin < size; begin = end) {
        for (end = begin; end < size && listed[end] == listed[begin];)
            end++;
        if (!listed[begin])
            layout->gaps[layout->gap_count++] = (struct gap){.offset = begin, .size = end - begin};
    }
    free(listed);
}

void layout_init(struct layout *layout, uint32_t alignment, const struct shape *shapes, uint32_t region_count,
                 const uint32_t *ids, uint32_t id_count)
{
    size_t begin[REGIONS_MAX], end = 0;
    require(region_count <= REGIONS_MAX);
    for (uint32_t r = 0; r < region_count; r++) {
        const struct shape *s = &shapes[r];
        struct strait_region *region = &layout->regions[r];
        *region = (struct strait_region){
            .page_count = s->page_count, .rows = s->rows, .row_bytes = s->row_bytes, .table = s->table};
        region->columns = s->columns;
        region->row_stride = piece_bytes(region) + s->row_gap;
        region->column_stride = s->columns > 1 ? (uint32_t)(s->rows * region->row_stride) : 0;
        const uint64_t page = pieces_of(region) * region->row_stride; /* with a gap behind its last piece */
        region->page_stride = page + s->page_gap;
        begin[r] = round_up(end + 64, 64) + s->skew;
        end = begin[r] + (s->page_count - 1) * region->page_stride + page - s->row_gap;
    }
    guarded_init(&layout->memory, round_up(end, alignment));
    for (uint32_t r = 0; r < region_count; r++)
        layout->regions[r].base = layout->memory.bytes + begin[r];
    layout->pages = (struct strait_pages){
        .regions = layout->regions, .ids = ids, .region_count = region_count, .id_count = id_count};
    find_gaps(layout);
}

void layout_mirror(struct layout *layout, const struct layout *like)
{
    *layout = *like;
    guarded_init(&layout->memory, like->memory.size);
    for (uint32_t r = 0; r < like->pages.region_count; r++)
        layout->regions[r].base = layout->memory.bytes + ((uint8_t *)like->regions[r].base - like->memory.bytes);
    layout->pages.regions = layout->regions;
    find_gaps(layout);
}

void layout_fini(struct layout *layout)
{
    if (layout->memory.map == NULL)
        return;
    require(layout_intact(layout));
    guarded_fini(&layout->memory);
    free(layout->gaps);
    *layout = (struct layout){.gaps = NULL};
}

uint32_t layout_count(const struct layout *layout)
{
    return layout->pages.region_count * layout->pages.id_count;
}

uint32_t layout_page_bytes(const struct layout *layout, uint32_t index)
{
    const struct strait_region *region = &layout->regions[index / layout->pages.id_count];
    return region->rows * region->row_bytes;
}

void layout_read(const struct layout *layout, uint32_t index, uint8_t *page)
{
    const struct strait_region *region = &layout->regions[index / layout->pages.id_count];
    size_t offset;
    const uint32_t bytes = piece_bytes(region);
    for (uint32_t piece = 0; piece < pieces_of(region) && piece_at(layout, index, piece, &offset); piece++)
        memcpy(page + (size_t)piece * bytes, layout->memory.bytes + offset, bytes);
}

void layout_write(struct layout *layout, uint32_t index, const uint8_t *page)
{
    const struct strait_region *region = &layout->regions[index / layout->pages.id_count];
    size_t offset;
    const uint32_t bytes = piece_bytes(region);
    for (uint32_t piece = 0; piece < pieces_of(region) && piece_at(layout, index, piece, &offset); piece++)
        memcpy(layout->memory.bytes + offset, page + (size_t)piece * bytes, bytes);
}

void layout_fill(struct layout *layout, struct rng *rng, enum pattern pattern, const struct strait_codebook *codebook)
{
    for (uint32_t i = 0; i < layout_count(layout); i++) {
        uint32_t size = layout_page_bytes(layout, i);
        uint8_t *page = malloc(size);
        require(page != NULL);
        fill_pattern(rng, pattern, strait_codebook_ranking(codebook, layout->regions[i / layout->pages.id_count].table),
                     page, size);
        layout_write(layout, i, page);
        free(page);
    }
}

void layout_clear(struct layout *layout)
{
    memset(layout->memory.bytes, CANARY, layout->memory.size);
}

bool layout_intact(const struct layout *layout)
{
    for (size_t i = 0; i < layout->gap_count; i++)
        if (!is_filled(layout->memory.bytes + layout->gaps[i].offset, layout->gaps[i].size, CANARY))
            return false;
    return true;
}

bool layout_untouched(const struct layout *layout)
{
    return is_filled(layout->memory.bytes, layout->memory.size, CANARY);
}

/* ---- Running the codec ----------------------------------------------------------------------------------------- */

struct strait_run verdict_begin(struct verdict *verdict)
{
    memset(verdict, 0, sizeof(*verdict));
    verdict->result.status = STATUS_UNSET;
    for (int i = 0; i < VERDICT_PAGES; i++)
        verdict->page_status[i] = STATUS_UNSET;
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .result = &verdict->result,
                               .page_status = verdict->page_status,
                               .page_status_count = VERDICT_PAGES,
                               .class_stats = verdict->stats,
                               .class_count = TEST_TABLES};
}

uint8_t *encode_layout(const struct strait_codec *codec, const struct asked *asked, const struct layout *src,
                       struct verdict *verdict)
{
    struct strait_encode_params params = {
        .size = sizeof(params), .element = asked->element, .mode = asked->mode, .codebook = asked->codebook};
    struct strait_run run = verdict_begin(verdict);
    uint64_t bound = strait_encode_bound(&src->pages);
    struct guarded dst;
    uint8_t *chunk = NULL;
    require(layout_count(src) <= VERDICT_PAGES);
    guarded_init(&dst, bound);
    verdict->returned = strait_encode(codec, &params, dst.bytes, bound, &src->pages, &run);
    if (verdict->returned == STRAIT_OK && verdict->result.status == STRAIT_OK) {
        require(verdict->result.bytes > 0 && verdict->result.bytes <= bound && verdict->result.bytes % 16 == 0);
        chunk = malloc(verdict->result.bytes);
        require(chunk != NULL);
        memcpy(chunk, dst.bytes, verdict->result.bytes);
    } else {
        require(is_filled(dst.bytes, dst.size, CANARY) && verdict->result.bytes == 0);
    }
    guarded_fini(&dst);
    return chunk;
}

void decode_layout(const struct strait_codec *codec, const struct strait_codebook *codebook, const struct layout *dst,
                   const uint32_t *select, const uint8_t *chunk, uint64_t size, struct verdict *verdict)
{
    struct strait_run run = verdict_begin(verdict);
    require(layout_count(dst) <= VERDICT_PAGES);
    verdict->returned = strait_decode(codec, codebook, &dst->pages, select, chunk, size, &run);
}

void verify_chunk(const struct strait_codec *codec, const struct strait_codebook *codebook, const uint8_t *chunk,
                  uint64_t size, struct verdict *verdict)
{
    struct strait_run run = verdict_begin(verdict);
    verdict->returned = strait_verify(codec, codebook, chunk, size, &run);
}

/* The chunk lies in guarded memory. */
static void decode_and_compare(const struct strait_codec *codec, const struct strait_codebook *codebook,
                               const struct layout *src, const struct guarded *chunk, const struct verdict *encoded)
{
    struct layout dst;
    struct verdict decoded, verified;
    layout_mirror(&dst, src);
    decode_layout(codec, codebook, &dst, NULL, chunk->bytes, chunk->size, &decoded);
    verify_chunk(codec, codebook, chunk->bytes, chunk->size, &verified);
    require(decoded.returned == STRAIT_OK && decoded.result.status == STRAIT_OK &&
            decoded.result.chunk_status == STRAIT_OK);
    require(memcmp(dst.memory.bytes, src->memory.bytes, src->memory.size) == 0);
    require(memcmp(&decoded, &verified, sizeof(decoded)) == 0);
    require(memcmp(decoded.result.values, encoded->result.values, sizeof(decoded.result.values)) == 0);
    require(memcmp(decoded.stats, encoded->stats, sizeof(decoded.stats)) == 0);
    require(memcmp(decoded.page_status, encoded->page_status, sizeof(decoded.page_status)) == 0);
    layout_fini(&dst);
}

uint8_t *round_trip(const struct asked *asked, const struct layout *src, struct verdict *verdict)
{
    uint8_t *chunk = encode_layout(variant(0), asked, src, verdict);
    struct guarded copy;
    require(chunk != NULL);
    guarded_init(&copy, verdict->result.bytes);
    memcpy(copy.bytes, chunk, copy.size);
    for (int v = 0; v < variant_count(); v++) {
        struct verdict other;
        uint8_t *same = encode_layout(variant(v), asked, src, &other);
        require(memcmp(verdict, &other, sizeof(other)) == 0 && memcmp(chunk, same, copy.size) == 0);
        free(same);
        decode_and_compare(variant(v), asked->codebook, src, &copy, verdict);
    }
    guarded_fini(&copy);
    return chunk;
}

/* ---- The format ------------------------------------------------------------------------------------------------ */

static uint32_t reference_key(uint64_t i)
{
    static const uint32_t r[16] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0,
                                   0x082EFA98, 0xEC4E6C89, 0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C,
                                   0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917};
    static const uint32_t c[2] = {0x9E3779B1, 0x85EBCA77};
    return (uint32_t)(r[i % 16] + (i / 16) * c[i % 2]);
}

static uint32_t word_at(const uint8_t *bytes, uint64_t size, uint64_t i)
{
    uint32_t word = 0;
    for (uint64_t k = 4 * i; k < 4 * i + 4 && k < size; k++)
        word |= (uint32_t)bytes[k] << 8 * (k % 4);
    return word;
}

uint64_t reference_sum(const uint8_t *bytes, uint64_t size, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t sum = mix(mix(a + (b << 32)) + c);
    for (uint64_t i = 0; 4 * i < size; i += 2) {
        uint64_t x = (uint32_t)(word_at(bytes, size, i) + reference_key(i));
        uint64_t y = (uint32_t)(word_at(bytes, size, i + 1) + reference_key(i + 1));
        sum += x * y + x + (y << 32);
    }
    return sum;
}

uint64_t reference_page_sum(const uint8_t *page, uint32_t page_bytes, uint32_t index, uint32_t table)
{
    return reference_sum(page, page_bytes, page_bytes, index, table);
}

bool anatomy_read(struct anatomy *anatomy, const uint8_t *chunk, uint64_t size)
{
    if (size < 48)
        return false;
    anatomy->page_count = load_le32(chunk + 8);
    anatomy->page_bytes = load_le32(chunk + 12);
    anatomy->has_lengths = chunk[6] % 2 != 0;
    if (anatomy->page_count == 0 || anatomy->page_count > 1048576 || anatomy->page_bytes == 0 ||
        anatomy->page_bytes > 16777216)
        return false;
    anatomy->rows_per_page = (anatomy->page_bytes + 16383) / 16384 - 1;
    anatomy->lengths = 48 + 16 * anatomy->page_count;
    anatomy->rows = anatomy->lengths + (anatomy->has_lengths ? 4 * anatomy->page_count : 0);
    anatomy->metadata_bytes = round_up(anatomy->rows + 4 * anatomy->page_count * anatomy->rows_per_page, 16);
    return true;
}

uint64_t anatomy_row(const struct anatomy *anatomy, uint64_t page, uint64_t block)
{
    if (block == 0)
        return 48 + 16 * page;
    return anatomy->rows + 4 * (page * anatomy->rows_per_page + block - 1);
}

bool repair_metadata(uint8_t *chunk, uint64_t size)
{
    struct anatomy anatomy;
    if (!anatomy_read(&anatomy, chunk, size) || anatomy.metadata_bytes > size)
        return false;
    memset(chunk + 40, 0, 8);
    store_le64(chunk + 40, reference_sum(chunk, anatomy.metadata_bytes, anatomy.metadata_bytes, 0xFFFFFFFFu, 65535));
    return true;
}
