#include "daemon/base/seal.h"

#include <internal/bytes.h>
#include <limits.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <pthread.h>
#include <string.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#define NONCE_SIZE 12u

/* Looked up once: a look-up by name takes longer than a small chunk. */
static struct {
    pthread_once_t once;
    EVP_KDF *hkdf;
    EVP_CIPHER *ciphers[SEAL_AES_256_GCM + 1];
} library = {.once = PTHREAD_ONCE_INIT};

static void library_open(void)
{
    library.hkdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    library.ciphers[SEAL_CHACHA20_POLY1305] = EVP_CIPHER_fetch(NULL, "ChaCha20-Poly1305", NULL);
    library.ciphers[SEAL_AES_256_GCM] = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
}

enum seal_suite seal_best(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") ? SEAL_AES_256_GCM
                                                                             : SEAL_CHACHA20_POLY1305;
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & (1u << 3)) != 0 ? SEAL_AES_256_GCM : SEAL_CHACHA20_POLY1305; /* HWCAP_AES */
#else
    return SEAL_CHACHA20_POLY1305;
#endif
}

void seal_wipe(void *secret, size_t size)
{
    OPENSSL_cleanse(secret, size);
}

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static bool derive_key(struct seal_direction *direction, uint64_t key_number)
{
    static const char label[] = "strait chunk key";
    char digest[] = "SHA256";
    uint8_t info[sizeof(label) + 8];
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY; /* the secret is one of TLS: uniform */
    memcpy(info, label, sizeof(label));
    store_le64(info + sizeof(label), key_number);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, direction->secret, sizeof(direction->secret)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof(info)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(library.hkdf);
    bool good = context != NULL && EVP_KDF_derive(context, direction->key, sizeof(direction->key), params) == 1;
    EVP_KDF_CTX_free(context);
    direction->key_number = good ? key_number + 1 : 0;
    return good;
}

bool seal_make(struct seal_direction *direction, uint64_t number, const void *header, size_t header_size,
               struct seal *seal)
{
    const uint64_t key_number = number / SEAL_KEY_CHUNKS;
    pthread_once(&library.once, library_open);
    if (header_size > SEAL_HEADER_MAX ||
        (direction->key_number != key_number + 1 && !derive_key(direction, key_number))) {
        ERR_clear_error();
        return false;
    }
    seal->suite = direction->suite;
    seal->number = number;
    seal->header_size = header_size;
    memcpy(seal->key, direction->key, sizeof(seal->key));
    memcpy(seal->header, header, header_size);
    return true;
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

/* In place: `size` bytes, and their tag behind them. */
static bool run(const struct seal *seal, bool encrypts, uint8_t *bytes, size_t size)
{
    uint8_t nonce[NONCE_SIZE] = {0};
    int done = 0, rest = 0;
    const EVP_CIPHER *cipher = library.ciphers[seal->suite];
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    store_le64(nonce + sizeof(nonce) - 8, seal->number);
    bool good = context != NULL && cipher != NULL && size <= INT_MAX &&
                EVP_CipherInit_ex2(context, cipher, seal->key, nonce, encrypts, NULL) == 1 &&
                (encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, bytes + size) == 1) &&
                EVP_CipherUpdate(context, NULL, &done, seal->header, (int)seal->header_size) == 1 &&
                EVP_CipherUpdate(context, bytes, &done, bytes, (int)size) == 1 && done == (int)size &&
                EVP_CipherFinal_ex(context, bytes + size, &rest) == 1 && rest == 0 &&
                (!encrypts || EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, bytes + size) == 1);
    EVP_CIPHER_CTX_free(context);
    if (!good)
        ERR_clear_error();
    return good;
}

bool seal_close(struct seal *seal, void *bytes, size_t size)
{
    bool good = run(seal, true, bytes, size);
    seal_wipe(seal->key, sizeof(seal->key));
    return good;
}

bool seal_open(struct seal *seal, void *bytes, size_t size)
{
    bool good = size >= SEAL_TAG_BYTES && run(seal, false, bytes, size - SEAL_TAG_BYTES);
    seal_wipe(seal->key, sizeof(seal->key));
    return good;
}
