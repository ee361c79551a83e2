#include "daemon/base/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal/bytes.h"

/* ---- The secret -------------------------------------------------------------------------------------------------- */

static enum strait_status refuse(const char *path, const char *what, enum strait_status status, char *why,
                                 size_t why_size)
{
    snprintf(why, why_size, "%.300s: %s", path, what);
    return status;
}

/* Why the file is unfit to hold a secret; NULL: it is fit. */
static const char *fault_of(const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return "not a regular file";
    if (info->st_uid != geteuid())
        return "belongs to another user";
    if ((info->st_mode & 077) != 0)
        return "others than its owner have permissions: chmod 600";
    return NULL;
}

/* Reads at most `capacity` bytes; false: errno says why. */
static bool read_up_to(int fd, uint8_t *dst, size_t capacity, size_t *size)
{
    for (*size = 0; *size < capacity;) {
        ssize_t got = read(fd, dst + *size, capacity - *size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return false;
        if (got == 0)
            break;
        *size += (size_t)got;
    }
    return true;
}

static enum strait_status read_secret(int fd, const char *path, struct secret *secret, char *why, size_t why_size)
{
    struct stat info;
    uint8_t more;
    size_t more_size = 0;
    if (fstat(fd, &info) != 0)
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    const char *fault = fault_of(&info);
    if (fault != NULL)
        return refuse(path, fault, STRAIT_ERR_INVALID, why, why_size);
    if (!read_up_to(fd, secret->bytes, sizeof(secret->bytes), &secret->size) || !read_up_to(fd, &more, 1, &more_size))
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    if (secret->size < SECRET_BYTES_MIN || more_size > 0)
        return refuse(path, "a secret has 16 to 4096 bytes", STRAIT_ERR_INVALID, why, why_size);
    return STRAIT_OK;
}

enum strait_status auth_secret_read(const char *path, struct secret *secret, char *why, size_t why_size)
{
    auth_secret_wipe(secret);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (fd < 0)
        return refuse(path, strerror(errno), STRAIT_ERR_IO, why, why_size);
    enum strait_status status = read_secret(fd, path, secret, why, why_size);
    close(fd);
    if (status != STRAIT_OK)
        auth_secret_wipe(secret);
    return status;
}

void auth_secret_wipe(struct secret *secret)
{
    OPENSSL_cleanse(secret, sizeof(*secret));
}

/* ---- The proof --------------------------------------------------------------------------------------------------- */

static bool add_view(EVP_MAC_CTX *mac, struct view view)
{
    uint8_t size[8];
    store_le64(size, view.size);
    return EVP_MAC_update(mac, size, sizeof(size)) == 1 &&
           (view.size == 0 || EVP_MAC_update(mac, view.data, view.size) == 1);
}

/* Fields of fixed size first, then each text behind its length: different hellos never give the same bytes. */
static bool add_hello(EVP_MAC_CTX *mac, const struct message_peer_hello *hello)
{
    uint8_t fixed[4 + 4 + 8 + 8 + 1];
    store_le32(fixed, hello->version);
    store_le32(fixed + 4, hello->version_min);
    store_le64(fixed + 8, hello->node);
    store_le64(fixed + 16, hello->incarnation);
    fixed[24] = hello->secret ? 1 : 0;
    return EVP_MAC_update(mac, fixed, sizeof(fixed)) == 1 && add_view(mac, hello->nonce) &&
           add_view(mac, hello->address) && add_view(mac, hello->dialled);
}

static EVP_MAC_CTX *hmac_begin(const struct secret *secret)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = EVP_MAC_CTX_new(hmac); /* the context keeps its own reference */
    EVP_MAC_free(hmac);
    if (context != NULL && EVP_MAC_init(context, secret->bytes, secret->size, params) == 1)
        return context;
    EVP_MAC_CTX_free(context);
    return NULL;
}

static bool prove(const struct secret *secret, bool dialler, const struct message_peer_hello *dialler_hello,
                  const struct message_peer_hello *acceptor_hello, uint8_t mac[MAC_BYTES])
{
    static const uint8_t label[] = "strait peer proof 1"; /* separates proofs from any other use of this key */
    const uint8_t role = dialler ? 1 : 2;
    size_t size = 0;
    EVP_MAC_CTX *context = hmac_begin(secret);
    if (context == NULL)
        return false;
    bool good = EVP_MAC_update(context, label, sizeof(label)) == 1 && EVP_MAC_update(context, &role, 1) == 1 &&
                add_hello(context, dialler_hello) && add_hello(context, acceptor_hello) &&
                EVP_MAC_final(context, mac, &size, MAC_BYTES) == 1 && size == MAC_BYTES;
    EVP_MAC_CTX_free(context);
    return good;
}

void auth_proof(const struct secret *secret, bool dialler, const struct message_peer_hello *dialler_hello,
                const struct message_peer_hello *acceptor_hello, uint8_t mac[MAC_BYTES])
{
    if (!prove(secret, dialler, dialler_hello, acceptor_hello, mac))
        auth_random(mac, MAC_BYTES);
}

bool auth_equal(const uint8_t a[MAC_BYTES], const uint8_t b[MAC_BYTES])
{
    return CRYPTO_memcmp(a, b, MAC_BYTES) == 0;
}

void auth_random(void *dst, size_t size)
{
    for (uint8_t *at = dst; size > 0;) {
        ssize_t got = getrandom(at, size, 0);
        if (got < 0 && errno != EINTR)
            abort();
        at += got > 0 ? got : 0;
        size -= got > 0 ? (size_t)got : 0;
    }
}
