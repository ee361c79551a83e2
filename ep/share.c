#include "ep/share.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_FORMAT "strait-ep-%016" PRIx64 "%016" PRIx64
#define NAME_BYTES  64
#define SEALS       (F_SEAL_SHRINK | F_SEAL_GROW) /* nobody can take pages away that others have mapped */

/* A mapping of this process. Ranks that are its threads have one mapping of a memory, which they count. */
struct mapping {
    struct mapping *next;
    uint64_t name[2], bytes;
    int64_t process; /* which made the mapping: a child after fork has the list of its parent */
    void *base;
    uint32_t users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

/* FNV-1a. */
static uint64_t hash_of(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Writes what tells the host from others, which a container shares with it. Returns its length. */
static size_t host_name(char *text, size_t size)
{
    const char *given = getenv("NCCL_HOSTID");
    FILE *file = given != NULL && *given != 0 ? NULL : fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t length = 0;

    if (file != NULL) {
        length = fread(text, 1, size, file);
        fclose(file);
    } else if (given != NULL && *given != 0) {
        length = strnlen(given, size);
        memcpy(text, given, length);
    }
    if (length == 0 && gethostname(text, size) == 0)
        length = strnlen(text, size);
    return length;
}

uint64_t ep_share_host(void)
{
    char name[256];
    const uid_t user = geteuid();
    struct stat space = {0};
    uint64_t hash = hash_of(UINT64_C(0xcbf29ce484222325), name, host_name(name, sizeof(name)));

    if (stat("/proc/self/ns/pid", &space) == 0)
        hash = hash_of(hash, &space.st_ino, sizeof(space.st_ino));
    return hash_of(hash, &user, sizeof(user));
}

static void name_of(const uint64_t name[2], char text[NAME_BYTES])
{
    snprintf(text, NAME_BYTES, NAME_FORMAT, name[0], name[1]);
}

/* Maps fd, adds the mapping to the list and returns it. NULL: no memory. */
static struct mapping *add(const struct ep_share_ticket *ticket, int fd)
{
    struct mapping *mapping = malloc(sizeof(*mapping));

    if (mapping == NULL)
        return NULL;
    *mapping =
        (struct mapping){.name = {ticket->name[0], ticket->name[1]}, .bytes = ticket->bytes, .process = getpid()};
    mapping->base = mmap(NULL, ticket->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping->base == MAP_FAILED) {
        free(mapping);
        return NULL;
    }
    mapping->users = 1;
    pthread_mutex_lock(&lock);
    mapping->next = mappings;
    mappings = mapping;
    pthread_mutex_unlock(&lock);
    return mapping;
}

enum strait_status ep_share_create(uint64_t bytes, struct ep_share_ticket *ticket, int *fd, void **base)
{
    char name[NAME_BYTES];

    *ticket = (struct ep_share_ticket){.bytes = bytes, .process = getpid()};
    if (getrandom(ticket->name, sizeof(ticket->name), 0) != (ssize_t)sizeof(ticket->name))
        return STRAIT_ERR_NO_MEMORY;
    name_of(ticket->name, name);
    ticket->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ticket->fd < 0)
        return STRAIT_ERR_NO_MEMORY;
    const struct mapping *mapping = NULL;
    if (ftruncate(ticket->fd, (off_t)bytes) == 0 && fcntl(ticket->fd, F_ADD_SEALS, SEALS) == 0)
        mapping = add(ticket, ticket->fd);
    if (mapping == NULL) {
        close(ticket->fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    *fd = ticket->fd;
    *base = mapping->base;
    return STRAIT_OK;
}

/* The mapping that this process has already, for one more user; NULL: none. */
static void *share_again(const struct ep_share_ticket *ticket)
{
    void *base = NULL;

    if (ticket->process != getpid())
        return NULL;
    pthread_mutex_lock(&lock);
    for (struct mapping *at = mappings; at != NULL && base == NULL; at = at->next)
        if (at->process == ticket->process && at->bytes == ticket->bytes &&
            memcmp(at->name, ticket->name, sizeof(at->name)) == 0) {
            at->users++;
            base = at->base;
        }
    pthread_mutex_unlock(&lock);
    return base;
}

/* Opens the memory of another process. The name tells that it is this one: process numbers of other hosts and PID
 * namespaces mean other processes here. -1: it is not to be had. */
static int open_ticket(const struct ep_share_ticket *ticket)
{
    char path[64], name[NAME_BYTES], wanted[NAME_BYTES + 32], link[NAME_BYTES + 32];
    struct stat status;

    snprintf(path, sizeof(path), "/proc/%" PRId64 "/fd/%" PRId32, ticket->process, ticket->fd);
    const ssize_t length = readlink(path, link, sizeof(link) - 1);
    if (length < 0)
        return -1;
    link[length] = 0;
    name_of(ticket->name, name);
    snprintf(wanted, sizeof(wanted), "/memfd:%s (deleted)", name);
    if (strcmp(link, wanted) != 0)
        return -1;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &status) == 0 && (uint64_t)status.st_size == ticket->bytes && seals >= 0 && (seals & SEALS) == SEALS)
        return fd;
    close(fd);
    return -1;
}

enum strait_status ep_share_map(const struct ep_share_ticket *ticket, void **base)
{
    void *again = share_again(ticket);

    if (again != NULL) {
        *base = again;
        return STRAIT_OK;
    }
    const int fd = open_ticket(ticket);
    if (fd < 0)
        return STRAIT_ERR_UNSUPPORTED;
    const struct mapping *mapping = add(ticket, fd);
    close(fd);
    if (mapping == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *base = mapping->base;
    return STRAIT_OK;
}

void ep_share_unmap(void *base)
{
    struct mapping *gone = NULL;

    pthread_mutex_lock(&lock);
    for (struct mapping **at = &mappings; *at != NULL; at = &(*at)->next)
        if ((*at)->base == base && (*at)->process == getpid()) {
            if (--(*at)->users == 0) {
                gone = *at;
                *at = gone->next;
            }
            break;
        }
    pthread_mutex_unlock(&lock);
    if (gone != NULL) {
        munmap(gone->base, gone->bytes);
        free(gone);
    }
}
