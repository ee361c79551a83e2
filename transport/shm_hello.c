#include "transport/shm_hello.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/memfd.h"

#define DESCRIPTORS_MAX 8 /* accepted in one message, only to be closed */

static const uint8_t magic[4] = {'S', 'H', 'M', '1'};

void shm_hello_write(uint8_t dst[SHM_HELLO_BYTES], size_t arena_size)
{
    memset(dst, 0, SHM_HELLO_BYTES);
    memcpy(dst, magic, sizeof(magic));
    store_le64(dst + 8, arena_size);
}

/* ---- The peer's arena ------------------------------------------------------------------------------------------ */

/* Our stores into a file that could shrink, or that lacks huge pages, would end in SIGBUS. */
static const char *check_arena(int fd, uint64_t claimed)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return "the peer's arena is not a memfd";
    if (memfd_is_hugetlb(fd))
        return "the peer's arena is of huge pages, which there may be none of";
    if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
        return "the peer's arena is not sealed against resizing";
    if (claimed == 0 || claimed > (uint64_t)info.st_size || claimed > SIZE_MAX / 2)
        return "the peer's arena is shorter than it claims";
    return NULL;
}

static const char *map_arena(int fd, uint64_t claimed, void **map, size_t *size)
{
    const char *why = check_arena(fd, claimed);
    if (why != NULL)
        return why;
    void *at = mmap(NULL, (size_t)claimed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED)
        return "the peer's arena cannot be mapped";
    *map = at;
    *size = (size_t)claimed;
    return NULL;
}

static bool is_hello(const uint8_t src[SHM_HELLO_BYTES])
{
    return memcmp(src, magic, sizeof(magic)) == 0 && load_le32(src + 4) == 0 && load_le64(src + 16) == 0;
}

const char *shm_hello_map(const uint8_t src[SHM_HELLO_BYTES], int fd, void **map, size_t *size)
{
    if (fd < 0)
        return "the peer sent no arena";
    const char *why = is_hello(src) ? map_arena(fd, load_le64(src + 8), map, size) : "the peer's hello is malformed";
    close(fd);
    return why;
}

/* ---- Its way over the socket ----------------------------------------------------------------------------------- */

ptrdiff_t shm_hello_send(int socket, const uint8_t *src, size_t size, const int fds[SHM_HELLO_FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(SHM_HELLO_FDS * sizeof(int))];
    } control = {0};
    const size_t bytes = (fds[1] >= 0 ? 2 : 1) * sizeof(int);
    struct iovec part = {.iov_base = (void *)(uintptr_t)src, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(rights), fds, bytes);
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* More than there can be: then those beyond the arena count for nothing. */
static void keep_descriptor(int fds[SHM_HELLO_FDS], int fd)
{
    int *at = fds[0] < 0 ? &fds[0] : &fds[1];
    if (*at == -1)
        *at = fd;
    else
        close(fd);
    if (*at != fd && fds[1] >= 0) {
        close(fds[1]);
        fds[1] = SHM_TOO_MANY;
    }
}

static void take_descriptors(struct msghdr *message, int fds[SHM_HELLO_FDS])
{
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int got;
            memcpy(&got, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
            keep_descriptor(fds, got);
        }
    }
}

ptrdiff_t shm_hello_receive(int socket, uint8_t *dst, size_t capacity, int fds[SHM_HELLO_FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = dst, .iov_len = capacity};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ptrdiff_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0)
        take_descriptors(&message, fds);
    return got;
}
