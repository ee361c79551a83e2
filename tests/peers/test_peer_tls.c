/* TLS between nodes: certificates that are good, late, of somebody else or for somebody else; new secrets and
 * certificates while connections live; handshakes that are cut, slow or garbled. */
#include "tests/peers/peer_node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/tls.h"
#include "tests/certificates.h"

/* ---- Certificates ------------------------------------------------------------------------------------------------ */

static struct authority ours, others;

/* What a node is given. */
struct identity {
    const struct authority *issuer; /* NULL: no certificate */
    const char *names;              /* NULL: this host */
    const char *expects;            /* tls-name; NULL: none */
    const char *secret;             /* NULL: none */
    bool late;                      /* it is out of date */
    bool pages;                     /* encrypt-pages */
    int copies;                     /* of the certificate in its file, more than one */
};

static void node_certificate(struct node *node, const struct identity *identity)
{
    struct node_options *o = &node->options;
    const char *names = identity->names != NULL ? identity->names : "IP:127.0.0.1";
    snprintf(o->tls_certificate, sizeof(o->tls_certificate), "%.200s.pem", o->socket);
    snprintf(o->tls_key, sizeof(o->tls_key), "%.200s.key", o->socket);
    snprintf(o->tls_ca, sizeof(o->tls_ca), "%.200s.ca", o->socket);
    snprintf(o->tls_name, sizeof(o->tls_name), "%s", identity->expects != NULL ? identity->expects : "");
    certificate_write(identity->issuer, names, identity->late ? -1 : 3600, identity->copies > 0 ? identity->copies : 1,
                      o->tls_certificate, o->tls_key);
    authority_write(&ours, o->tls_ca);
}

static void node_identity(struct node *node, const struct identity *identity)
{
    if (identity->issuer != NULL)
        node_certificate(node, identity);
    if (identity->secret != NULL)
        node_secret(node, identity->secret);
    node->options.encrypt_pages = identity->pages;
}

static void tls_setup(void)
{
    setup();
    ours = authority_make("our CA");
    others = authority_make("another CA");
}

static void tls_teardown(void)
{
    authority_free(&ours);
    authority_free(&others);
    teardown();
}

/* `why`: what the dialling node a is told; NULL: they connect. Who has found something wrong counts it. */
static const struct {
    struct identity a, b;
    const char *why;
    bool a_counts, b_counts;
} meetings[] = {
    {{.issuer = &ours}, {.issuer = &ours}, NULL, false, false},
    {{.issuer = &ours, .names = "DNS:elsewhere"}, {.issuer = &ours}, NULL, false, false},
    {{.issuer = &ours, .names = "DNS:strait", .expects = "strait"},
     {.issuer = &ours, .names = "DNS:x,DNS:strait", .expects = "strait"},
     NULL,
     false,
     false},
    {{.issuer = &ours}, {.issuer = &ours, .names = "IP:127.0.0.2"}, "it is for another name", true, false},
    {{.issuer = &ours}, {.issuer = &ours, .names = "DNS:127.0.0.1"}, "it is for another name", true, false},
    {{.issuer = &ours, .expects = "strait"}, {.issuer = &ours}, "it is for another name", true, false},
    {{.issuer = &ours}, {.issuer = &ours, .expects = "strait"}, "does not trust our certificate", false, true},
    {{.issuer = &ours}, {.issuer = &ours, .late = true}, "certificate has expired", true, false},
    {{.issuer = &ours, .late = true}, {.issuer = &ours}, "certificate expired", false, true},
    {{.issuer = &ours}, {.issuer = &others}, "unable to get local issuer certificate", true, false},
    {{.issuer = &others}, {.issuer = &ours}, "unknown CA", false, true},
    {{.issuer = &ours, .copies = 60}, {.issuer = &ours}, "refused by the peer", false, true},
    {{.issuer = &ours}, {.issuer = &ours, .copies = 60}, "excessive message size", true, false},
    {{.secret = SECRET}, {.issuer = &ours}, "the peer demands a certificate, but a secret is set here", true, true},
    {{.issuer = &ours}, {.secret = SECRET}, "refused by the peer: it has a secret", false, true},
    {{.issuer = &ours}, {.issuer = NULL}, "a certificate is demanded here, but the peer has none", true, true},
    {{.secret = SECRET, .pages = true}, {.secret = SECRET, .pages = true}, NULL, false, false},
    {{.secret = SECRET, .pages = true}, {.secret = SECRET}, "encrypted pages are demanded here", false, false},
    {{.secret = SECRET}, {.secret = SECRET, .pages = true}, "the peer demands encrypted pages", false, false},
    {{.issuer = NULL}, {.issuer = &ours}, "the peer demands a secret or a certificate", true, true},
};

TEST_LOOP(only_who_has_the_right_certificate_is_let_in, COUNT(meetings))
{
    pair_init("shm");
    node_identity(&a, &meetings[_i].a);
    node_identity(&b, &meetings[_i].b);
    pair_open();
    if (meetings[_i].why == NULL) {
        connect_nodes(&a, &b);
        send_note(&a, "hello");
        EXPECT(b.messages == 1);
        ck_assert_uint_eq(0, a.metrics.auth_failures + b.metrics.auth_failures);
        return;
    }
    EXPECT(strstr(get(&a, &b)->why, meetings[_i].why) != NULL);
    EXPECT(b.metrics.auth_failures >= meetings[_i].b_counts);
    ck_assert_uint_eq(meetings[_i].a_counts, a.metrics.auth_failures >= 1);
    ck_assert_uint_eq(meetings[_i].b_counts, b.metrics.auth_failures >= 1);
    RUN_UNTIL((get(&a, &b), false), 50);
    ck_assert_uint_eq(0, a.ups + b.ups);
}

/* ---- Files that do not fit --------------------------------------------------------------------------------------- */

enum unfit { NO_KEY, KEY_OF_ANOTHER, KEY_FOR_ALL, NO_PEM, NO_CA, SECRET_TOO, UNFIT_FILES };

static const char *const unfit_texts[] = {
    [NO_KEY] = "go together",    [KEY_OF_ANOTHER] = "no key in PEM that goes with the certificate",
    [KEY_FOR_ALL] = "chmod 600", [NO_PEM] = "no certificate in PEM",
    [NO_CA] = "No such file",    [SECRET_TOO] = "contradict each other",
};

static enum strait_status try_reload(struct node *node, char *why, size_t why_size)
{
    struct credentials *credentials;
    enum strait_status status = options_credentials(&node->options, &credentials, why, why_size);
    return status == STRAIT_OK ? peers_reload(node->peers, credentials, why, why_size) : status;
}

static void spoil(struct node *node, enum unfit how)
{
    struct node_options *o = &node->options;
    if (how == NO_KEY)
        o->tls_key[0] = 0;
    else if (how == KEY_OF_ANOTHER)
        snprintf(o->tls_key, sizeof(o->tls_key), "%s", b.options.tls_key);
    else if (how == KEY_FOR_ALL)
        ck_assert_int_eq(0, chmod(o->tls_key, 0644));
    else if (how == NO_PEM)
        ck_assert_int_eq(0, truncate(o->tls_certificate, 40));
    else if (how == NO_CA)
        ck_assert_int_eq(0, unlink(o->tls_ca));
    else
        node_secret(node, SECRET);
}

TEST_LOOP(files_that_do_not_fit_are_told_and_change_nothing, UNFIT_FILES)
{
    char why[512] = "";
    pair_init("shm");
    node_identity(&a, &(struct identity){.issuer = &ours});
    node_identity(&b, &(struct identity){.issuer = &ours});
    pair_open();
    struct node_options before = a.options;
    spoil(&a, (enum unfit)_i);
    ck_assert_int_ne(STRAIT_OK, try_reload(&a, why, sizeof(why)));
    ck_assert_msg(strstr(why, unfit_texts[_i]) != NULL, "%s", why);
    connect_nodes(&a, &b);
    a.options = before;
    node_init(&c, "c", "shm");
    node_certificate(&c, &(struct identity){.issuer = &ours});
    spoil(&c, (enum unfit)_i);
    ck_assert_int_ne(STRAIT_OK, node_try(&c, why, sizeof(why)));
}

/* ---- New ones while connections live ----------------------------------------------------------------------------- */

#define NEW_SECRET "the secret that comes after"

static void reload(struct node *node)
{
    char why[512] = "";
    ck_assert_msg(try_reload(node, why, sizeof(why)) == STRAIT_OK, "%s", why);
}

static void connect_anew(struct node *from, struct node *to)
{
    uint32_t quiets = from->quiets, other = to->quiets;
    peer_drop(from->up, "anew");
    EXPECT(from->quiets > quiets && to->quiets > other);
    connect_nodes(from, to);
}

TEST(a_secret_is_replaced_while_connections_live)
{
    pair_init("shm");
    node_secret(&a, SECRET);
    node_secret(&b, SECRET);
    pair_open();
    connect_nodes(&a, &b);
    node_secret(&a, NEW_SECRET);
    reload(&a);
    send_note(&a, "still there");
    EXPECT(b.messages == 1);
    ck_assert_uint_eq(0, a.downs);
    connect_anew(&a, &b); /* b has not got it yet */
    connect_anew(&b, &a);
    node_secret(&b, NEW_SECRET);
    reload(&b);
    connect_anew(&a, &b);
    connect_anew(&b, &a);
    reload(&a); /* and the one before counts no longer */
    node_start(&c, "c", "shm", SECRET);
    EXPECT(strstr(get(&c, &a)->why, "the secrets differ") != NULL);
    connect_anew(&a, &b);
    ck_assert_uint_eq(0, c.ups);
}

TEST(certificates_are_replaced_while_connections_live)
{
    pair_init("shm");
    node_identity(&a, &(struct identity){.issuer = &ours});
    node_identity(&b, &(struct identity){.issuer = &ours});
    pair_open();
    connect_nodes(&a, &b);
    node_certificate(&b, &(struct identity){.issuer = &ours, .late = true});
    reload(&b);
    send_note(&a, "still there");
    EXPECT(b.messages == 1);
    peer_drop(a.up, "anew");
    EXPECT(strstr(get(&a, &b)->why, "certificate has expired") != NULL);
    node_certificate(&b, &(struct identity){.issuer = &ours});
    reload(&b);
    connect_nodes(&a, &b);
}

TEST(a_secret_cannot_go_while_the_daemon_runs)
{
    char why[512] = "";
    node_start(&a, "a", "shm", SECRET);
    a.options.secret_file[0] = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, try_reload(&a, why, sizeof(why)));
}

/* ---- Handshakes that are not honest ------------------------------------------------------------------------------ */

/* The first flight of an honest peer. */
static size_t client_hello(uint8_t *bytes, size_t capacity)
{
    const struct credentials_files files = {b.options.secret_file, "", "", "", ""};
    struct credentials *credentials;
    char why[256];
    int pair[2];
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    ck_assert_int_eq(STRAIT_OK, credentials_read(&files, &credentials, why, sizeof(why)));
    struct tls *tls = tls_create(credentials, "b", false);
    credentials_release(credentials);
    ck_assert_int_eq(0, tls_layer(tls)->send(tls_layer(tls), pair[0], NULL, 0));
    ssize_t got = recv(pair[1], bytes, capacity, MSG_DONTWAIT);
    ck_assert_int_gt(got, 100);
    tls_destroy(tls);
    close(pair[0]), close(pair[1]);
    return (size_t)got;
}

static void require_alive(void)
{
    node_start(&a, "a", "shm", SECRET);
    connect_nodes(&a, &b);
}

TEST(garbled_handshakes_end_their_own_connection)
{
    static uint8_t hello[4096], garbled[4096];
    node_start(&b, "b", "shm", SECRET);
    size_t size = client_hello(hello, sizeof(hello));
    uint32_t seed = 1;
    for (int i = 0; i < 200; i++) {
        memcpy(garbled, hello, size);
        for (int flips = 0; flips <= i % 4; flips++) {
            seed = seed * 1664525 + 1013904223;
            garbled[(seed >> 8) % size] ^= (uint8_t)(1u << (seed >> 29));
        }
        int fd = dial_b_from(INADDR_LOOPBACK);
        ck_assert_int_eq((int)size, (int)send(fd, garbled, size, MSG_NOSIGNAL));
        shutdown(fd, SHUT_WR);
        EXPECT(is_ended(fd));
        close(fd);
    }
    ck_assert_uint_eq(0, b.ups);
    require_alive();
}

/* As fast as they can be made, from another host: a peer that comes meanwhile does not wait for them all. */
TEST(a_flood_of_handshakes_gets_no_more_than_its_share)
{
    enum { OPEN = 64 };
    static uint8_t hello[4096];
    int fds[OPEN], made = 0;
    node_start(&b, "b", "shm", SECRET);
    const size_t size = client_hello(hello, sizeof(hello));
    node_start(&a, "a", "shm", SECRET);
    const uint64_t end = uv_hrtime() + SECONDS(15) * 1000000u;
    while ((a.ups == 0 || b.metrics.greetings_put_off == 0) && uv_hrtime() < end) {
        if (made >= OPEN)
            close(fds[made % OPEN]);
        fds[made % OPEN] = dial_b_from(INADDR_LOOPBACK + 1);
        (void)send(fds[made % OPEN], hello, size, MSG_NOSIGNAL);
        made++;
        if (b.metrics.greetings_put_off > 0)
            (void)get(&a, &b);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_gt(b.metrics.greetings_put_off, 0);
    ck_assert_uint_eq(1, a.ups);
    for (int i = 0; i < OPEN && i < made; i++)
        close(fds[i]);
}

/* Byte by byte, and never the last one. */
TEST(a_slow_handshake_ends_in_time_and_wakes_nobody)
{
    static uint8_t hello[4096];
    uint32_t turns = 0;
    node_init(&b, "b", "shm");
    node_secret(&b, SECRET);
    b.options.connect_ms = 300;
    node_open(&b);
    size_t size = client_hello(hello, sizeof(hello));
    int fds[3] = {dial_b_from(INADDR_LOOPBACK), dial_b_from(INADDR_LOOPBACK), dial_b_from(INADDR_LOOPBACK)};
    ck_assert_int_eq(1, (int)send(fds[0], hello, 1, MSG_NOSIGNAL));
    ck_assert_int_eq(2, (int)send(fds[1], hello, 2, MSG_NOSIGNAL));
    ck_assert_int_eq((int)size - 1, (int)send(fds[2], hello, size - 1, MSG_NOSIGNAL));
    uint64_t end = uv_hrtime() + 150000000u;
    for (; uv_hrtime() < end; turns++)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_le(turns, 500); /* the pulse makes 75 */
    for (int i = 0; i < COUNT(fds); i++) {
        EXPECT(is_ended(fds[i]));
        close(fds[i]);
    }
    require_alive();
}

static int use_secret(SSL *ssl, const EVP_MD *digest, const unsigned char **identity, size_t *size,
                      SSL_SESSION **session)
{
    (void)digest;
    *session = credentials_psk(SSL_get_app_data(ssl), false, identity);
    *size = CREDENTIALS_IDENTITY;
    return SSL_SESSION_up_ref(*session);
}

/* An end of TLS that does what no daemon does, and knows b's secret. */
static SSL *dial_with_secret(int fd)
{
    const struct credentials_files files = {b.options.secret_file, "", "", "", ""};
    struct credentials *credentials;
    char why[256];
    int rc;
    ck_assert_int_eq(STRAIT_OK, credentials_read(&files, &credentials, why, sizeof(why)));
    SSL *ssl = SSL_new(credentials_context(credentials));
    ck_assert_int_eq(0, fcntl(fd, F_SETFL, O_NONBLOCK));
    SSL_set_app_data(ssl, credentials);
    SSL_set_psk_use_session_callback(ssl, use_secret);
    SSL_set_fd(ssl, fd);
    EXPECT(((rc = SSL_connect(ssl)) == 1 || SSL_get_error(ssl, rc) != SSL_ERROR_WANT_READ));
    ck_assert_int_eq(1, rc);
    return ssl;
}

/* Each record of them is used up within TLS, so a reader that waits for bytes of ours would read on without end. */
TEST(updates_of_keys_without_end_take_no_more_than_their_share)
{
    enum { UPDATES = 20000, RECORD_BYTES = 27, PER_TURN = 64 * 1024 };
    static uint8_t updates[UPDATES * RECORD_BYTES + 4096], byte;
    node_init(&b, "b", "shm");
    node_secret(&b, SECRET);
    b.options.connect_ms = SECONDS(20);
    node_open(&b);
    int fd = dial_b_from(INADDR_LOOPBACK), rc;
    SSL *ssl = dial_with_secret(fd);
    BIO *memory = BIO_new(BIO_s_mem());
    SSL_set0_wbio(ssl, memory);
    for (int i = 0; i < UPDATES; i++)
        ck_assert(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl) == 1);
    ck_assert_int_eq(8, SSL_write(ssl, "\x04\0\0\0\xff\xff\xff\xff", 8)); /* no message: the end */
    const int size = BIO_read(memory, updates, sizeof(updates));
    ck_assert_int_ge(size, UPDATES * RECORD_BYTES);
    uint32_t turns = 0;
    for (int sent = 0; b.metrics.peer_errors == 0; turns++) {
        const ssize_t took = sent < size ? send(fd, updates + sent, (size_t)(size - sent), MSG_NOSIGNAL) : 0;
        sent += took > 0 ? (int)took : 0;
        uv_run(&loop, UV_RUN_NOWAIT);
        ck_assert_uint_lt(turns, 100 * UPDATES);
    }
    ck_assert_uint_ge(turns, UPDATES * RECORD_BYTES / PER_TURN);
    rc = (int)recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    ck_assert_int_ge(rc, 0);
    credentials_release(SSL_get_app_data(ssl));
    SSL_free(ssl);
    close(fd);
    require_alive();
}

TEST(an_older_version_of_tls_is_refused)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    node_start(&b, "b", "shm", SECRET);
    int fd = dial_b_from(INADDR_LOOPBACK), rc;
    SSL *ssl = SSL_new(context);
    ck_assert_int_eq(0, fcntl(fd, F_SETFL, O_NONBLOCK));
    SSL_set_fd(ssl, fd);
    EXPECT(((rc = SSL_connect(ssl)) == 1 || SSL_get_error(ssl, rc) != SSL_ERROR_WANT_READ));
    ck_assert_int_ne(1, rc);
    ck_assert_uint_eq(1, b.metrics.auth_failures);
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    require_alive();
}

int main(void)
{
    (void)machine_watch();
    return run_tests("peer_tls", tls_setup, tls_teardown);
}
