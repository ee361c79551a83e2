/* The first message of a shared-memory link, which passes the sender's receive arena (shm.h). */
#ifndef STRAIT_TRANSPORT_SHM_HELLO_H
#define STRAIT_TRANSPORT_SHM_HELLO_H

#include <stddef.h>
#include <stdint.h>

#define SHM_HELLO_FDS   2u /* the arena, and the rings if there are any */
#define SHM_TOO_MANY    -2 /* in place of the rings: further descriptors came */
#define SHM_HELLO_BYTES 24u

void shm_hello_write(uint8_t dst[SHM_HELLO_BYTES], size_t arena_size);

/* Maps the arena of a peer's hello; takes over fd (-1: none came). Returns NULL, or the reason for failure as a static
 * text. */
const char *shm_hello_map(const uint8_t src[SHM_HELLO_BYTES], int fd, void **map, size_t *size);

/* Like write and read of a non-blocking socket; the descriptors that are not -1 go with the first byte. When receiving,
 * all of them must be -1 before; those that came are put there, and any more of them are closed. */
ptrdiff_t shm_hello_send(int socket, const uint8_t *src, size_t size, const int fds[SHM_HELLO_FDS]);
ptrdiff_t shm_hello_receive(int socket, uint8_t *dst, size_t capacity, int fds[SHM_HELLO_FDS]);

#endif
