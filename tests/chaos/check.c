/* What must be true of the pools and of the daemons. */
#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/chaos/totals.h"
#include "tests/chaos/world.h"

#define REST_MS 2500u /* time within which a daemon has to release everything */

/* What a daemon may have in excess of what it began with: two connections to its peer instead of one or none, with what
 * UCX opens for them; buffers that have grown to their size, and tombstones. */
#define DESCRIPTORS_MORE 20u
#define DRIVER_FILES     60u           /* of a GPU's driver and threads: not all exist from the beginning */
#define DRIVER_KIB       (192u * 1024) /* likewise */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_MORE_KIB (256u * 1024) /* sanitizers keep freed memory, and report leaks themselves */
#else
#define RESIDENT_MORE_KIB (24u * 1024)
#endif

/* ---- Bytes ---------------------------------------------------------------------------------------------------- */

static bool is_mapped(pid_t pid, const char *name)
{
    char path[64], line[512];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = strstr(line, name) != NULL;
    if (file != NULL)
        fclose(file);
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
        char *text = known == 0 && pools < 0 ? metrics_fetch(s->metrics) : NULL;
        pools = text != NULL ? metric_read(text, "strait_pools") : pools;
        known += w->sides[side].registered;
        free(text);
    }
    return pools > known;
}

static bool is_held(const struct world *w, const struct orphan *orphan)
{
    if (orphan->daemon == 0 || (w->sides[0].daemon != orphan->daemon && w->sides[1].daemon != orphan->daemon))
        return false;
    return orphan->pages.kind->has_driver ? holds_others(w, orphan->daemon)
                                          : is_mapped(orphan->daemon, orphan->pages.name);
}

static void check_orphan(struct world *w, struct orphan *orphan)
{
    char why[160];
    if (!check_pages(&orphan->pages, why, sizeof(why)))
        violation(w, "%s", why);
    bool lives = is_held(w, orphan);
    if (lives && fair_ns() - orphan->since_ns < REST_MS * (uint64_t)MS)
        return;
    if (lives)
        violation(w, "the pool of a client that is gone is still mapped");
    pages_destroy(&orphan->pages);
}

void world_check(struct world *w)
{
    char why[160];
    for (int side = 0; side < 2; side++)
        if (w->sides[side].pages.base != NULL && !check_pages(&w->sides[side].pages, why, sizeof(why)))
            violation(w, "%s", why);
    for (uint32_t i = 0; i < ORPHANS_MAX; i++)
        if (w->orphans[i].pages.base != NULL)
            check_orphan(w, &w->orphans[i]);
}

/* ---- Daemons at rest ------------------------------------------------------------------------------------------ */

char *metrics_fetch(unsigned port)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const struct timeval patience = {.tv_sec = 1};
    size_t capacity = 128 * 1024, used = 0;
    char *text = malloc(capacity);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ssize_t got = -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (text != NULL && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0)
        while ((got = recv(fd, text + used, capacity - 1 - used, 0)) > 0)
            used += (size_t)got;
    if (fd >= 0)
        close(fd);
    if (got != 0 || used == 0) {
        free(text);
        return NULL;
    }
    text[used] = 0;
    return text;
}

int64_t metric_read(const char *text, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, size) == 0 && line[size] == ' ')
            return atoll(line + size);
    }
    return -1;
}

/* Of the metrics that must be zero when nothing is under way, the first that is not. */
static const char *left_over(unsigned port, int64_t *value)
{
    static const char *const names[] = {"strait_slots_used",
                                        "strait_slots_quarantined",
                                        "strait_send_slots_used",
                                        "strait_quarantined_pages",
                                        "strait_transfers_live{role=\"source\"}",
                                        "strait_transfers_live{role=\"sink\"}"};
    char *text = metrics_fetch(port);
    const char *found = text == NULL ? "metrics" : NULL;
    *value = -1;
    for (size_t i = 0; found == NULL && i < sizeof(names) / sizeof(names[0]); i++)
        if ((*value = metric_read(text, names[i])) != 0)
            found = names[i];
    free(text);
    return found;
}

static uint32_t count_descriptors(pid_t pid)
{
    char path[64];
    uint32_t count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* KiB of anonymous memory: what was mapped from pools and arenas is not a leak of the heap. */
static uint32_t resident(pid_t pid)
{
    char path[64], line[128];
    unsigned kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "RssAnon: %u", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

/* Checks what a life of many faults has added to a daemon. */
static void check_growth(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    uint32_t descriptors = count_descriptors(s->daemon), kib = resident(s->daemon);
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
        while ((left = left_over(w->sides[side].metrics, &value)) != NULL && fair_ns() < until && !daemon_died(w, side))
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
