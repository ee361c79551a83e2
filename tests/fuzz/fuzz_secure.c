/* Foreign bytes at what encrypts: a chunk that claims to be encrypted, and what comes at a control port that speaks
 * TLS. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/seal.h"
#include "daemon/base/tls.h"
#include "tests/fuzz/fuzz.h"

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

enum { CHUNK_BYTES = 200, HEADER_BYTES = 56 };

/* What a good chunk becomes by changing, cutting or adding to it: pairs of a place and what is done to the byte there,
 * from the input's third byte on. The first byte names the suite, the second how much longer or shorter it is. Only an
 * unchanged one opens. Bytes that were never a chunk do not open either. */
void fuzz_seal(const uint8_t *data, size_t size)
{
    static uint8_t header[HEADER_BYTES] = "header";
    uint8_t chunk[CHUNK_BYTES + SEAL_TAG_BYTES + 256] = {0}, plain[CHUNK_BYTES], *copy;
    struct seal_direction direction = {.secret = "secret"};
    struct seal seal;
    if (size < 2)
        return;
    direction.suite = data[0] % 2 == 0 ? SEAL_AES_256_GCM : SEAL_CHACHA20_POLY1305;
    memset(plain, 0x5a, sizeof(plain));
    memcpy(chunk, plain, sizeof(plain));
    require(seal_make(&direction, 7, header, sizeof(header), &seal) && seal_close(&seal, chunk, CHUNK_BYTES));
    size_t length = (size_t)(CHUNK_BYTES + SEAL_TAG_BYTES + (int8_t)data[1]);
    uint8_t changed[HEADER_BYTES];
    memcpy(changed, header, sizeof(header));
    bool same = data[1] == 0;
    for (size_t i = 2; i + 1 < size; i += 2) {
        same &= data[i + 1] == 0 || (data[i] >= HEADER_BYTES && data[i] - HEADER_BYTES >= (int)length);
        if (data[i] < HEADER_BYTES)
            changed[data[i]] ^= data[i + 1];
        else
            chunk[data[i] - HEADER_BYTES] ^= data[i + 1];
    }
    copy = malloc(length > 0 ? length : 1);
    require(copy != NULL);
    memcpy(copy, chunk, length);
    require(seal_make(&direction, 7, changed, sizeof(changed), &seal));
    bool opened = seal_open(&seal, copy, length);
    require(opened || !same);
    require(!opened || (memcmp(copy, plain, sizeof(plain)) == 0 && length == CHUNK_BYTES + SEAL_TAG_BYTES &&
                        memcmp(changed, header, sizeof(header)) == 0));
    free(copy);
}

/* ---- TLS --------------------------------------------------------------------------------------------------------- */

static struct credentials *credentials_of_test(void)
{
    static struct credentials *made;
    char path[] = "/tmp/strait-fuzz-XXXXXX", why[256];
    if (made != NULL)
        return made;
    int fd = mkstemp(path);
    require(fd >= 0 && write(fd, "a secret of enough bytes", 24) == 24);
    const struct credentials_files files = {path, "", "", "", ""};
    require(credentials_read(&files, &made, why, sizeof(why)) == STRAIT_OK);
    close(fd);
    unlink(path);
    return made;
}

/* The input is what a stranger sends who does not know the secret: nothing of it is handed out, it ends in a failure
 * with a text or waits for more, and does not answer more than a handshake has. The first byte says whether this side
 * has dialled. */
void fuzz_tls(const uint8_t *data, size_t size)
{
    int pair[2], buffer = 1 << 20;
    char out[4096];
    if (size < 1 || size > 100000)
        return;
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    (void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    struct tls *tls = tls_create(credentials_of_test(), data[0] % 2 == 0 ? NULL : "host", false);
    require(tls != NULL);
    struct channel_layer *layer = tls_layer(tls);
    (void)layer->send(layer, pair[0], NULL, 0);
    ssize_t sent = send(pair[1], data + 1, size - 1, MSG_NOSIGNAL), got;
    shutdown(pair[1], SHUT_WR);
    for (int reads = 0; reads < 64; reads++) {
        got = layer->receive(layer, pair[0], out, sizeof(out));
        require(got <= 0);
        (void)layer->send(layer, pair[0], NULL, 0);
    }
    require(got == 0 || tls_why(tls)[0] != 0 || sent <= 0);
    tls_destroy(tls);
    close(pair[0]);
    close(pair[1]);
}
