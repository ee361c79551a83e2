#include "daemon/base/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/auth.h"

/* One suite: the control connection carries little, so a processor without AES instructions does not matter, and the
 * PSK's hash is known. */
#define SUITE     "TLS_AES_256_GCM_SHA384"
#define PSK_BYTES 48u

/* OpenSSL wants to know what sessions, and so PSKs, are for. */
static const unsigned char id_context[] = {'s', 't', 'r', 'a', 'i', 't'};

#define CHAIN_BYTES_MAX 16384 /* of a peer's certificates */
#define CHAIN_DEPTH_MAX 4     /* CAs between a peer's certificate and ours */

struct psk {
    SSL_SESSION *session; /* NULL: none */
    uint8_t identity[CREDENTIALS_IDENTITY];
};

struct credentials {
    atomic_uint references;
    SSL_CTX *context;
    struct psk psk, previous;
    bool secret;
    char name[256];
};

/* ---- PSK --------------------------------------------------------------------------------------------------------- */

static bool derive(const struct secret *secret, const char *label, uint8_t *out, size_t size)
{
    char digest[] = "SHA384";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)secret->bytes, secret->size),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    EVP_KDF *hkdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(hkdf);
    bool good = context != NULL && EVP_KDF_derive(context, out, size, params) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(hkdf);
    return good;
}

static const SSL_CIPHER *find_suite(SSL_CTX *context)
{
    STACK_OF(SSL_CIPHER) *suites = SSL_CTX_get_ciphers(context);
    for (int i = 0; i < sk_SSL_CIPHER_num(suites); i++)
        if (strcmp(SSL_CIPHER_get_name(sk_SSL_CIPHER_value(suites, i)), SUITE) == 0)
            return sk_SSL_CIPHER_value(suites, i);
    return NULL;
}

/* A PSK is what TLS would call a session that both sides remember. Its identity tells nothing of the secret but which
 * one it is. */
static bool psk_make(SSL_CTX *context, const struct secret *secret, struct psk *psk)
{
    uint8_t key[PSK_BYTES];
    const SSL_CIPHER *suite = find_suite(context);
    psk->session = SSL_SESSION_new();
    bool good = psk->session != NULL && suite != NULL && derive(secret, "strait control psk", key, sizeof(key)) &&
                derive(secret, "strait control identity", psk->identity, sizeof(psk->identity)) &&
                SSL_SESSION_set1_master_key(psk->session, key, sizeof(key)) == 1 &&
                SSL_SESSION_set_cipher(psk->session, suite) == 1 &&
                SSL_SESSION_set1_id_context(psk->session, id_context, sizeof(id_context)) == 1 &&
                SSL_SESSION_set_protocol_version(psk->session, TLS1_3_VERSION) == 1;
    OPENSSL_cleanse(key, sizeof(key));
    return good;
}

SSL_SESSION *credentials_psk(const struct credentials *credentials, bool previous, const unsigned char **identity)
{
    const struct psk *psk = previous ? &credentials->previous : &credentials->psk;
    *identity = psk->identity;
    return psk->session;
}

SSL_SESSION *credentials_find_psk(const struct credentials *credentials, const unsigned char *identity, size_t size)
{
    const struct psk *const all[] = {&credentials->psk, &credentials->previous};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->session != NULL && size == sizeof(all[i]->identity) &&
            memcmp(all[i]->identity, identity, size) == 0)
            return all[i]->session;
    return NULL;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

struct reader {
    struct credentials *made;
    char *why;
    size_t why_size;
};

static enum strait_status refuse(const struct reader *reader, const char *path, const char *what)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;
    snprintf(reader->why, reader->why_size, "%.300s: %s%s%s", path, what, reason != NULL ? ": " : "",
             reason != NULL ? reason : "");
    ERR_clear_error();
    return STRAIT_ERR_INVALID;
}

/* OpenSSL's own error says only that the system has one. */
static enum strait_status check_readable(const struct reader *reader, const char *path)
{
    if (access(path, R_OK) == 0)
        return STRAIT_OK;
    snprintf(reader->why, reader->why_size, "%.300s: %s", path, strerror(errno));
    return STRAIT_ERR_IO;
}

static enum strait_status read_secret(const struct reader *reader, const char *path)
{
    struct secret secret;
    struct credentials *made = reader->made;
    enum strait_status status = auth_secret_read(path, &secret, reader->why, reader->why_size);
    if (status != STRAIT_OK)
        return status;
    made->secret = true;
    if (!psk_make(made->context, &secret, &made->psk))
        status = refuse(reader, path, "no key can be made from it");
    auth_secret_wipe(&secret);
    return status;
}

static enum strait_status read_certificate(const struct reader *reader, const struct credentials_files *files)
{
    SSL_CTX *context = reader->made->context;
    if (files->certificate[0] == 0 || files->key[0] == 0 || files->ca[0] == 0) {
        snprintf(reader->why, reader->why_size, "tls-certificate, tls-key and tls-ca go together: set all of them");
        return STRAIT_ERR_INVALID;
    }
    enum strait_status status = auth_private_check(files->key, reader->why, reader->why_size);
    if (status == STRAIT_OK)
        status = check_readable(reader, files->certificate);
    if (status == STRAIT_OK)
        status = check_readable(reader, files->ca);
    if (status != STRAIT_OK)
        return status;
    if (SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1)
        return refuse(reader, files->certificate, "no certificate in PEM");
    if (SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) != 1)
        return refuse(reader, files->key, "no key in PEM that goes with the certificate");
    if (SSL_CTX_load_verify_file(context, files->ca) != 1)
        return refuse(reader, files->ca, "no certificate of a CA in PEM");
    snprintf(reader->made->name, sizeof(reader->made->name), "%s", files->name);
    return STRAIT_OK;
}

/* ---- The context ------------------------------------------------------------------------------------------------- */

static int no_password(char *text, int size, int writing, void *data)
{
    (void)text, (void)size, (void)writing, (void)data;
    return -1; /* else OpenSSL would ask on the terminal */
}

/* Who has a secret trusts no certificate: then the peer's proof is its PSK, and a certificate in its place fails. */
static SSL_CTX *context_make(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (context == NULL)
        return NULL;
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1); /* else each record takes two calls of the system */
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_verify_depth(context, CHAIN_DEPTH_MAX);
    SSL_CTX_set_max_cert_list(context, CHAIN_BYTES_MAX);
    SSL_CTX_set_default_passwd_cb(context, no_password);
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
        SSL_CTX_set_session_id_context(context, id_context, sizeof(id_context)) == 1 &&
        SSL_CTX_set_ciphersuites(context, SUITE) == 1 && SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1)
        return context;
    SSL_CTX_free(context);
    return NULL;
}

enum strait_status credentials_read(const struct credentials_files *files, struct credentials **credentials, char *why,
                                    size_t why_size)
{
    bool certificate = files->certificate[0] != 0 || files->key[0] != 0 || files->ca[0] != 0;
    *credentials = NULL;
    if (files->secret[0] == 0 && !certificate)
        return STRAIT_OK;
    if (files->secret[0] != 0 && certificate) {
        snprintf(why, why_size, "secret-file and tls-certificate contradict each other: set one of them");
        return STRAIT_ERR_INVALID;
    }
    struct reader reader = {.made = calloc(1, sizeof(*reader.made)), .why = why, .why_size = why_size};
    if (reader.made != NULL)
        reader.made->context = context_make();
    if (reader.made == NULL || reader.made->context == NULL) {
        free(reader.made);
        snprintf(why, why_size, "no context for TLS 1.3 can be made");
        return STRAIT_ERR_NO_MEMORY;
    }
    reader.made->references = 1;
    enum strait_status status = certificate ? read_certificate(&reader, files) : read_secret(&reader, files->secret);
    if (status == STRAIT_OK)
        *credentials = reader.made;
    else
        credentials_release(reader.made);
    return status;
}

bool credentials_follow(struct credentials *credentials, const struct credentials *previous)
{
    const struct psk *old = &previous->psk;
    if (old->session != NULL && memcmp(old->identity, credentials->psk.identity, sizeof(old->identity)) == 0)
        return false;
    if (old->session != NULL && credentials->secret) {
        SSL_SESSION_up_ref(old->session);
        credentials->previous = *old;
    }
    return true;
}

struct credentials *credentials_reference(struct credentials *credentials)
{
    credentials->references++;
    return credentials;
}

void credentials_release(struct credentials *credentials)
{
    if (credentials == NULL || --credentials->references > 0)
        return;
    SSL_SESSION_free(credentials->psk.session);
    SSL_SESSION_free(credentials->previous.session);
    SSL_CTX_free(credentials->context);
    free(credentials);
}

bool credentials_are_secret(const struct credentials *credentials)
{
    return credentials->secret;
}

bool credentials_have_previous(const struct credentials *credentials)
{
    return credentials->previous.session != NULL;
}

const char *credentials_name(const struct credentials *credentials)
{
    return credentials->name;
}

SSL_CTX *credentials_context(const struct credentials *credentials)
{
    return credentials->context;
}
