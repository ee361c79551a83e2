/* Pools in memory of the host, and what must be true of pools and daemons. */
#include "tests/chaos/pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/chaos/world.h"
#include "tests/fakes/device.h"

/* Host memory: as such, and as memory of the fake devices. */

static const uint64_t *memory_host_table;

static bool host_begin(const uint64_t *words, size_t count)
{
    (void)count;
    memory_host_table = words;
    return true;
}

static bool host_take(struct pages *pages)
{
    pages->fd = memfd_create(pages->name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pages->fd < 0)
        return false;
    if (ftruncate(pages->fd, (off_t)POOL_BYTES) != 0 || fcntl(pages->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        goto err_close;
    pages->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pages->fd, 0);
    if (pages->base != MAP_FAILED)
        return true;
err_close:
    pages->base = NULL;
    close(pages->fd);
    return false;
}

static void host_give(struct pages *pages)
{
    munmap(pages->base, POOL_BYTES);
    close(pages->fd);
}

static uint64_t *words_of(const struct pages *pages, const struct part *part)
{
    return (uint64_t *)(void *)(pages->base + part->offset);
}

static void host_write(const struct pages *pages, const struct part *parts, uint32_t count)
{
    for (uint32_t p = 0; p < count; p++) {
        uint64_t *to = words_of(pages, &parts[p]);
        const uint64_t *from = memory_host_table + parts[p].first;
        for (uint32_t i = 0; i < parts[p].bytes / 8; i++)
            to[i] = from[i] ^ parts[p].flip;
    }
}

static bool holds(const struct pages *pages, const struct part *part)
{
    const uint64_t *is = words_of(pages, part), *from = memory_host_table + part->first;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < part->bytes / 8; i++)
        wrong |= is[i] ^ from[i] ^ part->flip;
    return wrong == 0;
}

static uint32_t host_find_wrong(const struct pages *pages, const struct part *parts, uint32_t count)
{
    uint32_t p = 0;
    while (p < count && holds(pages, &parts[p]))
        p++;
    return p;
}

static uint32_t no_devices(void)
{
    return 0;
}

static void describe_host(const struct pages *pages, struct strait_pool_region *region)
{
    (void)pages;
    region->handle = STRAIT_HANDLE_MEMFD;
}

const struct memory_kind memory_host = {.name = "host",
                                        .devices = no_devices,
                                        .begin = host_begin,
                                        .take = host_take,
                                        .give = host_give,
                                        .describe = describe_host,
                                        .write = host_write,
                                        .find_wrong = host_find_wrong};

/* ---- Of the fake devices -------------------------------------------------------------------------------------- */

static uint32_t fake_devices(void)
{
    return FAKE_DEVICES;
}

/* The descriptor belongs to the driver, which outlives its clients. */
static bool fake_take(struct pages *pages)
{
    if (!host_take(pages))
        return false;
    const struct fake_handle handle = {.pid = getpid(), .fd = pages->fd, .device = pages->device};
    memcpy(pages->ipc, &handle, sizeof(handle));
    return true;
}

static void describe_ipc(const struct pages *pages, struct strait_pool_region *region)
{
    region->handle = STRAIT_HANDLE_CUDA_IPC;
    region->fd = -1;
    memcpy(region->ipc, pages->ipc, sizeof(region->ipc));
}

const struct memory_kind memory_fake = {.name = "fake",
                                        .devices = fake_devices,
                                        .begin = host_begin,
                                        .take = fake_take,
                                        .give = host_give,
                                        .describe = describe_ipc,
                                        .write = host_write,
                                        .find_wrong = host_find_wrong};

#define BASE_WORDS  65536u /* a power of two */
#define GUARD_FIRST (BASE_WORDS + PAGE_BYTES / 8)
#define TABLE_WORDS (GUARD_FIRST + GUARD_BYTES / 8)
#define GUARD_BYTE  0xc7
#define FRACTIONS   0x003f003f003f003fu /* of four BF16 values: bits that no exponent depends on */

static uint64_t pages_table[TABLE_WORDS];

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Values like those of a KV cache: signs and fractions at random, few exponents, now and then a strange one. */
static uint16_t value(uint64_t random)
{
    uint32_t exponent = 120 + (uint32_t)__builtin_ctzll(random | 0x40);
    if (((random >> 40) & 1023) == 0)
        exponent = (random >> 50) & 0xff;
    return (uint16_t)(((random >> 32) & 0x807f) | exponent << 7);
}

void pages_begin(void)
{
    uint16_t *values = (uint16_t *)pages_table;
    for (uint32_t i = 0; i < GUARD_FIRST * 4; i++)
        values[i] = value(mix(i));
    memset(pages_table + GUARD_FIRST, GUARD_BYTE, GUARD_BYTES);
}

static bool driver_is_used;

bool pages_use_kind(const struct memory_kind *kind)
{
    driver_is_used |= kind->has_driver;
    return kind->begin(pages_table, TABLE_WORDS);
}

void pages_exit_child(int status)
{
    if (driver_is_used)
        _exit(status);
    exit(status); /* where leaks are looked for */
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

static uint64_t region_offset(uint32_t region)
{
    return GUARD_BYTES + region * REGION_BYTES;
}

static uint64_t page_offset(uint32_t region, uint32_t page)
{
    return region_offset(region) + (uint64_t)page * PAGE_STRIDE;
}

static struct part page_part(uint32_t region, uint32_t page, uint64_t tag)
{
    uint64_t random = mix(tag * POOL_REGIONS + region);
    return (struct part){.offset = page_offset(region, page),
                         .bytes = PAGE_BYTES,
                         .first = (uint32_t)((random >> 40) % BASE_WORDS),
                         .flip = random & FRACTIONS};
}

static struct part guard_part(uint64_t offset)
{
    return (struct part){.offset = offset, .bytes = GUARD_BYTES, .first = GUARD_FIRST};
}

static uint32_t add_page(struct part *parts, uint32_t page, uint64_t tag)
{
    for (uint32_t r = 0; r < POOL_REGIONS; r++)
        parts[r] = page_part(r, page, tag);
    return POOL_REGIONS;
}

/* All guards, and the pages whose content is known. */
static uint32_t add_known(const struct pages *pages, struct part *parts)
{
    uint32_t count = 0;
    parts[count++] = guard_part(0);
    for (uint32_t i = 0; i < POOL_PAGES; i++) {
        for (uint32_t r = 0; r < POOL_REGIONS; r++)
            parts[count++] = guard_part(page_offset(r, i) + PAGE_BYTES);
        if (pages->uses[i] == PAGE_KNOWN)
            count += add_page(parts + count, i, pages->tags[i]);
    }
    return count;
}

/* ---- Pools ---------------------------------------------------------------------------------------------------- */

bool pages_create(struct pages *pages, const struct memory_kind *kind, int32_t device, const char *name,
                  uint64_t first_tag)
{
    struct part parts[PARTS_MAX];
    memset(pages, 0, sizeof(*pages));
    snprintf(pages->name, sizeof(pages->name), "%s", name);
    pages->kind = kind;
    pages->device = device;
    pages->fd = -1;
    if (!kind->take(pages))
        return false;
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        pages->tags[i] = first_tag + i;
    kind->write(pages, parts, add_known(pages, parts));
    return true;
}

void pages_destroy(struct pages *pages)
{
    if (pages->base == NULL)
        return;
    pages->kind->give(pages);
    pages->base = NULL;
}

struct strait_pool_region pages_region(const struct pages *pages, uint32_t r)
{
    struct strait_pool_region region = {.device = pages->device,
                                        .fd = pages->fd,
                                        .offset = region_offset(r),
                                        .page_stride = PAGE_STRIDE,
                                        .page_count = POOL_PAGES,
                                        .rows = 1,
                                        .row_bytes = PAGE_BYTES,
                                        .element = STRAIT_ELEMENT_BF16,
                                        .role = r % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                        .layer = (int32_t)r / 2};
    pages->kind->describe(pages, &region);
    return region;
}

/* ---- Bytes ---------------------------------------------------------------------------------------------------- */

void pages_fill(struct pages *pages, uint32_t page, uint64_t tag)
{
    struct part parts[POOL_REGIONS];
    pages->kind->write(pages, parts, add_page(parts, page, tag));
    pages->tags[page] = tag;
    pages->uses[page] = PAGE_KNOWN;
}

bool pages_hold(const struct pages *pages, uint32_t page, uint64_t tag)
{
    struct part parts[POOL_REGIONS];
    uint32_t count = add_page(parts, page, tag);
    return pages->kind->find_wrong(pages, parts, count) == count;
}

static void tell_wrong(const struct pages *pages, const struct part *part, char *why, size_t why_size)
{
    uint32_t page = part->offset == 0 ? 0 : (uint32_t)((part->offset - GUARD_BYTES) % REGION_BYTES / PAGE_STRIDE);
    if (part->offset == 0)
        snprintf(why, why_size, "the guard in front of pool %s was written to", pages->name);
    else if (part->first == GUARD_FIRST)
        snprintf(why, why_size, "the guard behind page %u of pool %s was written to", page, pages->name);
    else
        snprintf(why, why_size, "page %u of pool %s changed, although nobody expects it", page, pages->name);
}

bool pages_verify(const struct pages *pages, char *why, size_t why_size)
{
    struct part parts[PARTS_MAX];
    uint32_t count = add_known(pages, parts), wrong = pages->kind->find_wrong(pages, parts, count);
    if (wrong < count)
        tell_wrong(pages, &parts[wrong], why, why_size);
    return wrong == count;
}

#define REST_MS 2500u /* time within which a daemon has to release everything */

/* What a daemon may have in excess of what it began with: two connections to its peer instead of one or none, with what
 * UCX opens for them; buffers that have grown to their size, and tombstones. */
#define DESCRIPTORS_MORE 20u
#define DRIVER_FILES     60u           /* of a GPU's driver and threads: not all exist from the beginning */
#define DRIVER_KIB       (192u * 1024) /* of a GPU's driver: not all exist from the beginning */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_MORE_KIB (256u * 1024) /* sanitizers keep freed memory, and report leaks themselves */
#else
#define RESIDENT_MORE_KIB (24u * 1024)
#endif

/* ---- Bytes ---------------------------------------------------------------------------------------------------- */

/* The line that /proc/PID/maps has for a memfd, in `line`. The name ends there: that of one pool may begin another's.
 */
static bool is_mapped(pid_t pid, const char *name, char *line, int size)
{
    char path[64], wanted[80];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    snprintf(wanted, sizeof(wanted), "/memfd:%s (", name);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, size, file) != NULL)
        found = strstr(line, wanted) != NULL;
    if (file != NULL)
        fclose(file);
    line[found ? strcspn(line, "\n") : 0] = 0;
    return found;
}

/* Whether the daemon has more pools than its clients have registered: it then still holds those of dead clients. */
static bool holds_others(const struct world *w, pid_t pid)
{
    int64_t known = 0, pools = -1;
    for (int side = 0; side < 2; side++) {
        const struct side *s = &w->sides[daemon_of(w, side)];
        if (s->daemon != pid)
            continue;
        char *text = known == 0 && pools < 0 ? metrics_fetch(s->metrics, 1000) : NULL;
        pools = text != NULL ? metric_read(text, "strait_pools") : pools;
        known += w->sides[side].registered;
        free(text);
    }
    return pools > known;
}

static bool is_held(const struct world *w, const struct orphan *orphan, char *line, int size)
{
    line[0] = 0;
    if (orphan->daemon == 0 || (w->sides[0].daemon != orphan->daemon && w->sides[1].daemon != orphan->daemon))
        return false;
    return orphan->pages.kind->has_driver ? holds_others(w, orphan->daemon)
                                          : is_mapped(orphan->daemon, orphan->pages.name, line, size);
}

static void check_orphan(struct world *w, struct orphan *orphan)
{
    char why[160], line[512];
    if (!pages_verify(&orphan->pages, why, sizeof(why)))
        violation(w, "%s", why);
    bool lives = is_held(w, orphan, line, sizeof(line));
    if (lives && fair_ns() - orphan->since_ns < REST_MS * (uint64_t)MS)
        return;
    if (lives)
        violation(w, "pool %s of a client that is gone is still mapped after %llu ms: %s", orphan->pages.name,
                  (unsigned long long)((fair_ns() - orphan->since_ns) / MS), line);
    pages_destroy(&orphan->pages);
}

void world_check(struct world *w)
{
    char why[160];
    for (int side = 0; side < 2; side++)
        if (w->sides[side].pages.base != NULL && !pages_verify(&w->sides[side].pages, why, sizeof(why)))
            violation(w, "%s", why);
    for (uint32_t i = 0; i < ORPHANS_MAX; i++)
        if (w->orphans[i].pages.base != NULL)
            check_orphan(w, &w->orphans[i]);
}

/* ---- Daemons at rest ------------------------------------------------------------------------------------------ */

/* Checks what a life of many faults has added to a daemon. */
static void check_growth(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    struct process_size size;
    (void)process_size_read(s->daemon, &size);
    uint32_t descriptors = size.descriptors, kib = (uint32_t)(size.anonymous / 1024);
    if (++s->rests == 2) {
        s->descriptors = descriptors;
        s->resident = kib;
    }
    totals_max(&w->totals->descriptors, descriptors);
    if (s->rests <= 2)
        return;
    totals_max(&w->totals->growth_kib, (int64_t)kib - s->resident);
    totals_max(&w->totals->rests, s->rests);
    bool driver = w->setting->memory->has_driver;
    if (descriptors > s->descriptors + DESCRIPTORS_MORE + (driver ? DRIVER_FILES : 0))
        violation(w, "daemon %d has %u descriptors open, and had %u", side, descriptors, s->descriptors);
    if (kib > s->resident + RESIDENT_MORE_KIB + (driver ? DRIVER_KIB : 0))
        violation(w, "daemon %d takes %u KiB, and took %u", side, kib, s->resident);
}

static void read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    line[0] = 0;
    if (file != NULL && fgets(line, (int)size, file) != NULL)
        line[strcspn(line, "\n")] = 0;
    if (file != NULL)
        fclose(file);
}

/* Prints what the threads of a daemon that does not answer are doing: names, kernel wait channels, system calls. */
static void tell_threads(pid_t pid)
{
    char path[320], name[64], waits[64], call[160];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, entry->d_name);
        read_line(path, name, sizeof(name));
        snprintf(path, sizeof(path), "/proc/%d/task/%s/wchan", (int)pid, entry->d_name);
        read_line(path, waits, sizeof(waits));
        snprintf(path, sizeof(path), "/proc/%d/task/%s/syscall", (int)pid, entry->d_name);
        read_line(path, call, sizeof(call));
        printf("  thread %s of %d: in %s, call %s\n", name, (int)pid, waits, call);
    }
    if (folder != NULL)
        closedir(folder);
}

void world_at_rest(struct world *w)
{
    for (int side = 0; side <= daemon_of(w, SINK); side++) {
        uint64_t until = fair_ns() + REST_MS * (uint64_t)MS;
        const char *left;
        int64_t value;
        while ((left = metrics_left_over(w->sides[side].metrics, 1000, &value)) != NULL && fair_ns() < until &&
               !daemon_died(w, side))
            (void)world_pump(w, 5, NULL, NULL);
        if (w->sides[side].daemon == 0)
            continue;
        if (left != NULL)
            violation(w, "%s of daemon %d is %lld at rest", left, side, (long long)value);
        if (left != NULL && value == -1)
            tell_threads(w->sides[side].daemon);
        check_growth(w, side);
    }
}
