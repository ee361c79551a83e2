#include "daemon/base/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Received bytes are read by OpenSSL from the socket, as many as there are. What it sends gathers in memory, so that
 * several messages leave in one call, and none raises SIGPIPE. */

#define SEND_BYTES_MAX ((size_t)64 * 1024) /* encrypted before the socket has taken what was */
#define RECEIVE_BYTES_MAX \
    ((size_t)32 * 1024) /* read by one call: updates of keys would be taken as long as they come */

struct tls {
    struct channel_layer layer; /* first */
    SSL *ssl;
    BIO *out; /* ssl's */
    struct credentials *credentials;
    bool dialled, previous;
    bool begun;          /* the other side's first bytes are those of TLS: OpenSSL may read */
    bool offered_secret; /* accepted: the peer has tried to prove a secret */
    size_t allowance;    /* that this call may still read */
    bool more;           /* the latest read found something, so there may be more that the socket has not any longer */
    bool failed, refused;
    char why[128];
};

static struct tls *tls_of(struct channel_layer *layer)
{
    return (struct tls *)layer;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static ssize_t fail(struct tls *tls, bool refused, const char *format, ...) __attribute__((format(printf, 3, 4)));

static ssize_t fail(struct tls *tls, bool refused, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tls->why, sizeof(tls->why), format, arguments);
    va_end(arguments);
    tls->failed = true;
    tls->refused = refused;
    ERR_clear_error();
    errno = EPROTO;
    return -1;
}

/* The peer has sent an alert: TLS says little, because it must not help strangers. */
static ssize_t refused_by_peer(struct tls *tls, unsigned alert)
{
    const char *reason = SSL_alert_desc_string_long((int)alert);
    bool established = SSL_is_init_finished(tls->ssl) && !tls->dialled;
    if (established || alert == SSL3_AD_CLOSE_NOTIFY)
        return fail(tls, false, "closed by the peer");
    if (tls->offered_secret && !credentials_are_secret(tls->credentials))
        return fail(tls, true, "a certificate is demanded here, but the peer has a secret (tls-certificate)");
    if (credentials_are_secret(tls->credentials))
        return fail(tls, false, "refused by the peer: the secrets differ, by the look of it (%s)", reason);
    return fail(tls, false, "refused by the peer: it has a secret, or does not trust our certificate (%s)", reason);
}

static const char *certificate_error(const struct tls *tls)
{
    long error = SSL_get_verify_result(tls->ssl);
    if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return "it is for another name";
    return error != X509_V_OK ? X509_verify_cert_error_string(error) : "none";
}

static bool is_of_certificate(int reason)
{
    return reason == SSL_R_CERTIFICATE_VERIFY_FAILED || reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
}

/* What this side has found wrong with the other. */
static ssize_t refuse(struct tls *tls, unsigned long error)
{
    int reason = ERR_GET_REASON(error);
    const char *text = ERR_reason_error_string(error);
    bool secret = credentials_are_secret(tls->credentials);
    if (SSL_is_init_finished(tls->ssl))
        return fail(tls, true, "TLS: %s", text != NULL ? text : "broken");
    if (secret && is_of_certificate(reason))
        return fail(tls, true, "the peer demands a certificate, but a secret is set here (tls-certificate)");
    if (secret && reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM)
        return tls->offered_secret
                   ? fail(tls, true, "the proof is wrong: the secrets differ, or somebody is between")
                   : fail(tls, true, "a secret is demanded here, but the peer has a certificate (secret-file)");
    if (secret && (reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_DIGEST_CHECK_FAILED))
        return fail(tls, true, "the proof is wrong: the secrets differ, or somebody is between");
    if (!secret && is_of_certificate(reason))
        return fail(tls, true, "the peer's certificate is not accepted: %s", certificate_error(tls));
    return fail(tls, true, "TLS: %s", text != NULL ? text : "broken");
}

/* Alerts of the peer have reasons from SSL_AD_REASON_OFFSET on. */
static ssize_t broken(struct tls *tls)
{
    unsigned long error = ERR_peek_error();
    int reason = ERR_GET_REASON(error);
    if (ERR_GET_LIB(error) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
        return refused_by_peer(tls, (unsigned)(reason - SSL_AD_REASON_OFFSET));
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        return 0;
    }
    return refuse(tls, error);
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

/* Each record of TLS begins with its type, of which the first is handshake or alert, and a version of 0x03XX, XX from 1
 * on. The first message in clear text is shorter than 64 KiB: its third byte is 0. */
static bool is_record(const uint8_t *bytes, ssize_t size)
{
    return (size < 1 || bytes[0] == 0x16 || bytes[0] == 0x15) && (size < 2 || bytes[1] == 3) &&
           (size < 3 || (bytes[2] != 0 && bytes[2] <= 4));
}

#define FIRST_BYTES 3

/* Like recv, but leaves the bytes where they are. */
static ssize_t look(int fd, uint8_t bytes[FIRST_BYTES])
{
    ssize_t got;
    do
        got = recv(fd, bytes, FIRST_BYTES, MSG_PEEK | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got;
}

bool tls_is_spoken(int fd)
{
    uint8_t bytes[FIRST_BYTES];
    return look(fd, bytes) == FIRST_BYTES && is_record(bytes, FIRST_BYTES);
}

/* A peer that has sent clear text understands that TLS is spoken here when it sees an alert. */
static ssize_t refuse_clear_text(struct tls *tls, int fd)
{
    static const uint8_t alert[] = {0x15, 3, 3, 0, 2, 2, SSL3_AD_HANDSHAKE_FAILURE};
    if (!tls->dialled)
        (void)send(fd, alert, sizeof(alert), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (credentials_are_secret(tls->credentials))
        return fail(tls, true, "a secret is demanded here, but the peer has none (secret-file)");
    return fail(tls, true, "a certificate is demanded here, but the peer has none (tls-certificate)");
}

/* A call of SSL_read goes on until there is something for us. Without an allowance the socket looks empty to it. */
static long on_bio(BIO *bio, int what, const char *bytes, size_t size, int i, long l, int rc, size_t *done)
{
    struct tls *tls = (struct tls *)BIO_get_callback_arg(bio);
    (void)bytes, (void)size, (void)i, (void)l;
    if (what == BIO_CB_READ && tls->allowance == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    if (what == (BIO_CB_READ | BIO_CB_RETURN) && rc > 0)
        tls->allowance -= *done < tls->allowance ? *done : tls->allowance;
    return rc;
}

/* Looks at the first bytes before OpenSSL reads any. 1: it may; 0 and -1 as recv. */
static ssize_t begin(struct tls *tls, int fd)
{
    uint8_t bytes[FIRST_BYTES];
    ssize_t got = look(fd, bytes);
    if (got <= 0)
        return got;
    if (!is_record(bytes, got))
        return refuse_clear_text(tls, fd);
    BIO *in = BIO_new_socket(fd, BIO_NOCLOSE);
    if (in == NULL)
        return fail(tls, false, "out of memory");
    BIO_set_callback_ex(in, on_bio);
    BIO_set_callback_arg(in, (char *)tls);
    SSL_set0_rbio(tls->ssl, in);
    tls->begun = true;
    return 1;
}

/* ---- The layer --------------------------------------------------------------------------------------------------- */

/* Passes encrypted bytes on to the socket. 0, or -1 and errno. */
static ssize_t pass_on(struct tls *tls, int fd)
{
    char *bytes, sent[4096];
    long size;
    while ((size = BIO_get_mem_data(tls->out, &bytes)) > 0) {
        ssize_t took = send(fd, bytes, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (took < 0 && errno == EINTR)
            continue;
        if (took < 0)
            return -1;
        if (took == size)
            (void)BIO_reset(tls->out);
        for (int part; took > 0 && took < size; took -= part, size -= part) {
            part = BIO_read(tls->out, sent, took < (ssize_t)sizeof(sent) ? (int)took : (int)sizeof(sent));
            if (part <= 0)
                break;
        }
    }
    return 0;
}

/* The result of a call of OpenSSL that did not succeed: -1 and errno, or 0 at the end of the connection. */
static ssize_t result_of(struct tls *tls, int rc)
{
    int kind = SSL_get_error(tls->ssl, rc), error = errno;
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    if (kind == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (kind == SSL_ERROR_SSL)
        return broken(tls);
    ERR_clear_error();
    if (error == 0)
        return 0;
    errno = error;
    return -1;
}

static ssize_t encrypt(struct tls *tls, const struct iovec *pieces, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count && total < SEND_BYTES_MAX; i++) {
        size_t most = SEND_BYTES_MAX - total, took = 0;
        size_t size = pieces[i].iov_len < most ? pieces[i].iov_len : most;
        ERR_clear_error();
        int rc = SSL_write_ex(tls->ssl, pieces[i].iov_base, size, &took);
        if (rc != 1)
            return total > 0 ? (ssize_t)total : result_of(tls, rc);
        total += took;
        if (took < pieces[i].iov_len)
            break;
    }
    return (ssize_t)total;
}

static ssize_t layer_send(struct channel_layer *layer, int fd, const struct iovec *pieces, size_t count)
{
    struct tls *tls = tls_of(layer);
    if (tls->failed) {
        errno = EPROTO;
        return -1;
    }
    if (!SSL_is_init_finished(tls->ssl)) {
        if (tls->dialled && !tls->begun)
            (void)SSL_do_handshake(tls->ssl); /* the first message; all others are answers, which layer_receive makes */
        if (pass_on(tls, fd) != 0)
            return -1;
        errno = EAGAIN;
        return count == 0 ? 0 : -1;
    }
    if (pass_on(tls, fd) != 0)
        return -1;
    ssize_t taken = encrypt(tls, pieces, count);
    if (taken > 0 && pass_on(tls, fd) != 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return -1;
    return taken;
}

static ssize_t layer_receive(struct channel_layer *layer, int fd, void *dst, size_t size)
{
    struct tls *tls = tls_of(layer);
    size_t got = 0;
    if (tls->failed) {
        errno = EPROTO;
        return -1;
    }
    if (!tls->begun) {
        ssize_t first = begin(tls, fd);
        if (first <= 0)
            return first;
    }
    ERR_clear_error();
    errno = 0;
    tls->allowance = RECEIVE_BYTES_MAX;
    int rc = SSL_read_ex(tls->ssl, dst, size, &got);
    tls->more = rc == 1;
    ssize_t result = rc == 1 ? (ssize_t)got : result_of(tls, rc);
    int error = errno;
    (void)pass_on(tls, fd); /* the answers of a handshake, alerts; layer_send finds out what is wrong with the socket */
    errno = error;
    return result;
}

static bool layer_wants_write(const struct channel_layer *layer)
{
    const struct tls *tls = (const struct tls *)layer;
    return !tls->failed && BIO_ctrl_pending(tls->out) > 0;
}

static bool layer_pending(const struct channel_layer *layer)
{
    const struct tls *tls = (const struct tls *)layer;
    return !tls->failed && tls->more && SSL_has_pending(tls->ssl) == 1;
}

/* ---- PSK --------------------------------------------------------------------------------------------------------- */

static int offer_psk(SSL *ssl, const EVP_MD *digest, const unsigned char **identity, size_t *size,
                     SSL_SESSION **session)
{
    const struct tls *tls = SSL_get_app_data(ssl);
    (void)digest; /* NULL, or the suite's */
    *session = credentials_psk(tls->credentials, tls->previous, identity);
    *size = CREDENTIALS_IDENTITY;
    return *session == NULL || SSL_SESSION_up_ref(*session) == 1;
}

static int find_psk(SSL *ssl, const unsigned char *identity, size_t size, SSL_SESSION **session)
{
    struct tls *tls = SSL_get_app_data(ssl);
    tls->offered_secret = true;
    *session = credentials_find_psk(tls->credentials, identity, size);
    return *session == NULL || SSL_SESSION_up_ref(*session) == 1;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* The name that the peer's certificate has to have. */
static bool expect_name(struct tls *tls, const char *host)
{
    const char *name = credentials_name(tls->credentials);
    char numeric[INET6_ADDRSTRLEN + 1];
    uint8_t address[sizeof(struct in6_addr)];
    if (name[0] == 0)
        name = host;
    if (name == NULL)
        return true;
    snprintf(numeric, sizeof(numeric), "%.*s", (int)strcspn(name, "%"), name); /* without a link-local scope */
    SSL_set_hostflags(tls->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (inet_pton(AF_INET, numeric, address) == 1 || inet_pton(AF_INET6, numeric, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl), numeric) == 1;
    return SSL_set1_host(tls->ssl, name) == 1;
}

struct tls *tls_create(struct credentials *credentials, const char *host, bool previous)
{
    struct tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return NULL;
    tls->layer = (struct channel_layer){
        .send = layer_send, .receive = layer_receive, .wants_write = layer_wants_write, .pending = layer_pending};
    tls->credentials = credentials_reference(credentials);
    tls->dialled = host != NULL;
    tls->previous = previous;
    tls->ssl = SSL_new(credentials_context(credentials));
    tls->out = BIO_new(BIO_s_mem());
    BIO *nothing = BIO_new(BIO_s_mem()); /* read until `begun` */
    if (tls->ssl == NULL || tls->out == NULL || nothing == NULL || !expect_name(tls, host)) {
        BIO_free(tls->out);
        BIO_free(nothing);
        tls_destroy(tls);
        return NULL;
    }
    SSL_set_app_data(tls->ssl, tls);
    SSL_set_bio(tls->ssl, nothing, tls->out);
    SSL_set_psk_use_session_callback(tls->ssl, credentials_are_secret(credentials) ? offer_psk : NULL);
    SSL_set_psk_find_session_callback(tls->ssl, find_psk);
    if (tls->dialled)
        SSL_set_connect_state(tls->ssl);
    else
        SSL_set_accept_state(tls->ssl);
    return tls;
}

void tls_destroy(struct tls *tls)
{
    if (tls == NULL)
        return;
    SSL_free(tls->ssl);
    credentials_release(tls->credentials);
    free(tls);
}

struct channel_layer *tls_layer(struct tls *tls)
{
    return &tls->layer;
}

const char *tls_why(const struct tls *tls)
{
    return tls->why;
}

bool tls_refused(const struct tls *tls)
{
    return tls->refused;
}

bool tls_export(const struct tls *tls, const char *label, void *out, size_t size)
{
    return SSL_is_init_finished(tls->ssl) &&
           SSL_export_keying_material(tls->ssl, out, size, label, strlen(label), NULL, 0, 0) == 1;
}
