/* strait bench hosts: one host serves the pages of a pool, another one reads them, each with a daemon of its own.
 *
 * What they tell each other crosses a TCP connection to --port of the host that serves, in lines. It first sends one
 * line of JSON:
 *
 *     {"bench_hosts": 1, "page_bytes": N, "pages": N, "pool": HEX, "codebook": HEX, "sums": HEX}
 *
 * the pool as strait_pool_export makes it, the codebook set, and of each page XXH3-64 in canonical form. After that the
 * other one sends "coding NAME" as often as it likes, and each time gets "ok". Either ends it by closing. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench/bench.h"
#include "bench/daemons.h"
#include "bench/table.h"
#include "tools/report.h"

#define WIPED        0xFF /* NaNs: a page of real values never looks wiped */
#define VERSION      1
#define LINE_MAX_IN  64u                   /* that the host that serves takes */
#define LINE_MAX_OUT (64u * 1024 * 1024)   /* that the other one takes */
#define PAGES_MAX    (1u << 20)            /* of a pool */
#define POOL_MAX     ((uint64_t)256 << 30) /* bytes of a pool */
#define TURN_NS      100000000ull          /* between two looks at what may have ended */
#define ANSWER_NS    60000000000ull        /* that an answer may take */
#define DEADLINE_MS  600000u
#define ROWS_MAX     256u
#define ADDRESS_MAX  128u

/* ---- Options ----------------------------------------------------------------------------------------------------- */

struct hosts_options {
    struct bench_options common;
    bool serve;
    const char *peer;
    uint64_t port, page_bytes, repeats, samples;
    struct number_list pages, codings;
    struct text_list daemon;
};

#define OPTIONS struct hosts_options
static const struct bench_option known_options[] = {
    {OPTION(FLAG, serve, "serve", NULL, NULL,
            "serve pages until interrupted; takes --page, --pages, --input, --calib")},
    {OPTION(TEXT, peer, "peer", NULL, "HOST",
            "read from the host that serves; takes --pages, --coding, --repeats ...")},
    {OPTION(NUMBER, port, "port", "4792", "N",
            "port of the host that serves, for what the two tell each other; 0: any"),
     .max = 65535},
    {OPTION(SIZE, page_bytes, "page", "32K", "SIZE", "bytes of a page, a multiple of 16"), .min = 16,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = 16},
    {OPTION(NUMBERS, pages, "pages", "1,32,1024,8192", "LIST",
            "pages of a request; the most of them is what the pool has"),
     .min = 1, .max = PAGES_MAX},
    {OPTION(NAMES, codings, "coding", "raw,auto", "LIST", "of raw, top16, tiered, base, split, auto"),
     .names = coding_names},
    {OPTION(NUMBER, repeats, "repeats", "5", "N", "run everything N times in turn"), .min = 1, .max = REPEATS_MAX},
    {OPTION(NUMBER, samples, "samples", "0", "N",
            "requests of a row in each turn; 0: one, or as many small ones as make 16M"),
     .max = SAMPLES_MAX},
    {OPTION(TEXTS, daemon, "daemon", NULL, "NAME=VALUE",
            "one more option for straitd, once or more, such as secret-file=FILE; without a secret whoever reaches the "
            "ports can read and overwrite the bench's pages")},
};
static char command_name[] = "strait bench hosts";
static const struct bench_command command = {
    .name = command_name,
    .summary =
        "Measures reads between two hosts: with --serve on one of them, then with --peer and its name on the other, "
        "which prints the table. Each starts a daemon of its own ($STRAITD, or the straitd beside this program), which "
        "listens at the address by which the hosts have met. Every page that lands is compared.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
    .codebook = true,
};

/* ---- The connection ---------------------------------------------------------------------------------------------- */

struct connection {
    int fd;                                       /* -1: none */
    char local[ADDRESS_MAX], remote[ADDRESS_MAX]; /* "10.0.0.1", "[fe80::1%eth0]" */
    char *data;                                   /* of the line that is arriving */
    size_t used, size, line;                      /* line: bytes of the one that was returned last */
};

static void name_address(const struct sockaddr_storage *address, socklen_t size, char *text)
{
    char host[ADDRESS_MAX - 2] = "?";

    getnameinfo((const struct sockaddr *)address, size, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
    if (strncmp(host, "::ffff:", 7) == 0 && strchr(host, '.') != NULL)
        snprintf(text, ADDRESS_MAX, "%s", host + 7);
    else
        snprintf(text, ADDRESS_MAX, strchr(host, ':') != NULL ? "[%s]" : "%s", host);
}

static void connection_init(struct connection *connection, int fd)
{
    struct sockaddr_storage local, remote;
    socklen_t local_size = sizeof(local), remote_size = sizeof(remote);

    *connection = (struct connection){.fd = fd};
    if (getsockname(fd, (struct sockaddr *)&local, &local_size) == 0)
        name_address(&local, local_size, connection->local);
    if (getpeername(fd, (struct sockaddr *)&remote, &remote_size) == 0)
        name_address(&remote, remote_size, connection->remote);
}

static void connection_fini(struct connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    free(connection->data);
    *connection = (struct connection){.fd = -1};
}

/* Waits for the descriptor, and works on what the client of `side` (NULL: none) is told. 0: time to look again; -1: the
 * bench is to end. */
static int wait_for(int fd, short events, struct bench_side *side)
{
    struct pollfd ready = {.fd = fd, .events = events};
    struct timespec turn = {.tv_nsec = (long)TURN_NS};
    int count;

    if (interrupted() || (side != NULL && !bench_sides_work(&side, 1, 0)))
        return -1;
    count = ppoll(&ready, 1, &turn, NULL);
    return count < 0 && errno != EINTR ? -1 : count < 0 ? 0 : count;
}

static bool send_line(struct connection *connection, const char *line, struct bench_side *side)
{
    const size_t size = strlen(line) + 1;
    const uint64_t end = clock_ns() + ANSWER_NS;

    for (size_t at = 0; at < size;) {
        int ready = wait_for(connection->fd, POLLOUT, side);
        bool last = at + 1 == size;
        ssize_t sent = ready <= 0 ? 0
                                  : send(connection->fd, last ? "\n" : line + at, last ? 1 : size - 1 - at,
                                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (ready < 0 || clock_ns() > end || (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            print_error(NULL, "%s: the connection is lost", connection->remote);
            return false;
        }
        at += sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

static bool make_room(struct connection *connection, size_t max)
{
    size_t size = connection->size == 0 ? 4096 : 2 * connection->size;
    char *grown;

    if (connection->used >= max) {
        print_error(NULL, "%s sends lines of more than %zu bytes", connection->remote, max);
        return false;
    }
    if (connection->used + 1 < connection->size)
        return true;
    grown = realloc(connection->data, size);
    if (grown == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    connection->data = grown;
    connection->size = size;
    return true;
}

/* The next line, without its end, until the next call. NULL: `max` or `timeout_ns` exceeded, the bench is to end
 * (errors on stderr), or the other side has closed, which sets *closed. */
static char *receive_line(struct connection *connection, size_t max, uint64_t timeout_ns, struct bench_side *side,
                          bool *closed)
{
    const uint64_t end = clock_ns() + timeout_ns;

    *closed = false;
    connection->used -= connection->line;
    if (connection->line > 0)
        memmove(connection->data, connection->data + connection->line, connection->used);
    connection->line = 0;
    for (size_t looked = 0;;) {
        char *stop =
            connection->used > looked ? memchr(connection->data + looked, '\n', connection->used - looked) : NULL;
        if (stop != NULL) {
            *stop = '\0';
            connection->line = (size_t)(stop - connection->data) + 1;
            return connection->data;
        }
        looked = connection->used;
        int ready = wait_for(connection->fd, POLLIN, side);
        if (ready < 0 || !make_room(connection, max))
            return NULL;
        if (clock_ns() > end) {
            print_error(NULL, "%s does not answer", connection->remote);
            return NULL;
        }
        ssize_t got = ready == 0 ? 0
                                 : recv(connection->fd, connection->data + connection->used,
                                        connection->size - 1 - connection->used, MSG_DONTWAIT);
        if (ready > 0 && got <= 0 && !(got < 0 && (errno == EAGAIN || errno == EINTR))) {
            *closed = true;
            return NULL;
        }
        connection->used += got > 0 ? (size_t)got : 0;
    }
}

/* ---- The pages of one end ---------------------------------------------------------------------------------------- */

struct end {
    struct strait_memory memory;
    struct bench_site site;
    struct bench_side side;
    struct strait_pool *pool;
    uint64_t page_bytes;
    uint32_t pages;
};

/* Starts the daemon and registers a pool of one region; the memory's contents are the caller's. */
static bool end_open(struct end *end, const char *name, const char *address, const struct text_list *daemon,
                     const struct strait_codebook *codebook)
{
    char listen[ADDRESS_MAX + 8];
    const struct strait_pool_region region = {
        .handle = STRAIT_HANDLE_MEMFD,
        .device = -1,
        .fd = end->memory.fd,
        .page_stride = end->page_bytes,
        .page_count = end->pages,
        .rows = 1,
        .row_bytes = (uint32_t)end->page_bytes,
        .element = STRAIT_ELEMENT_BF16,
        .role = STRAIT_ROLE_OTHER,
        .layer = -1,
    };

    snprintf(listen, sizeof(listen), "%s:0", address);
    return bench_site_init(&end->site, daemon, codebook) && bench_side_open(&end->side, name, listen, &end->site) &&
           bench_side_register(&end->side, &region, 1, &end->pool) && bench_side_await_pools(&end->side);
}

/* Keeps the memory. */
static bool end_close(struct end *end)
{
    bool ended = bench_side_close(&end->side);

    bench_site_fini(&end->site);
    end->pool = NULL;
    return ended;
}

static bool end_alloc(struct end *end, uint64_t page_bytes, uint32_t pages)
{
    *end = (struct end){.page_bytes = page_bytes, .pages = pages};
    if (strait_alloc(page_bytes * pages, &end->memory) == STRAIT_OK)
        return true;
    print_error(NULL, "no memory for %u pages of %llu bytes", pages, (unsigned long long)page_bytes);
    return false;
}

static void end_free(struct end *end)
{
    if (end->memory.base != NULL)
        strait_free(&end->memory);
    end->memory = (struct strait_memory){0};
}

static uint8_t *page_at(const struct end *end, uint32_t id)
{
    return (uint8_t *)end->memory.base + id * end->page_bytes;
}

static uint32_t most_pages(const struct hosts_options *asked)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < asked->pages.count; i++)
        most = asked->pages.list[i] > most ? asked->pages.list[i] : most;
    return (uint32_t)most;
}

/* ---- The host that serves ---------------------------------------------------------------------------------------- */

struct server {
    const struct hosts_options *asked;
    struct bench_values values;
    struct end end;
    uint8_t *codebook; /* serialized */
    size_t codebook_bytes;
    XXH64_canonical_t *sums; /* of each page */
};

static bool server_make(struct server *server)
{
    const struct hosts_options *asked = server->asked;
    const uint32_t pages = most_pages(asked);

    if (!values_open(&server->values, &asked->common, 1) || !end_alloc(&server->end, asked->page_bytes, pages))
        return false;
    spans_fill(server->end.memory.base, asked->page_bytes * pages, &server->values.tensors.spans, 0,
               server->values.tensors.spans.count);
    server->codebook_bytes = strait_codebook_serialized_size(server->values.codebook);
    server->codebook = malloc(server->codebook_bytes);
    server->sums = calloc(pages, sizeof(server->sums[0]));
    if (server->codebook == NULL || server->sums == NULL ||
        strait_codebook_serialize(server->values.codebook, server->codebook, server->codebook_bytes) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t i = 0; i < pages; i++)
        XXH64_canonicalFromHash(&server->sums[i], XXH3_64bits(page_at(&server->end, i), server->end.page_bytes));
    return true;
}

/* The first line; NULL: failed, with the error on stderr. The caller frees it. */
static char *describe(const struct server *server)
{
    static uint8_t blob[1 << 20];
    cJSON *object = cJSON_CreateObject();
    size_t size = 0;
    enum strait_status status = strait_pool_export(server->end.pool, blob, sizeof(blob), &size);
    char *text = NULL;

    cJSON_AddNumberToObject(object, "bench_hosts", VERSION);
    cJSON_AddNumberToObject(object, "page_bytes", (double)server->end.page_bytes);
    cJSON_AddNumberToObject(object, "pages", server->end.pages);
    json_add_hex(object, "pool", blob, size);
    json_add_hex(object, "codebook", server->codebook, server->codebook_bytes);
    json_add_hex(object, "sums", (const uint8_t *)server->sums, server->end.pages * sizeof(server->sums[0]));
    if (status == STRAIT_OK)
        text = cJSON_PrintUnformatted(object);
    if (text == NULL)
        print_error(NULL, "no pool to serve: %s", strait_status_string(status));
    cJSON_Delete(object);
    return text;
}

/* What the other host asks for, until it has gone. False: the bench is to end. */
static bool answer(struct server *server, struct connection *connection)
{
    struct bench_side *side = &server->end.side;
    char *line;
    bool closed;

    while ((line = receive_line(connection, LINE_MAX_IN, UINT64_MAX / 2, side, &closed)) != NULL) {
        const char *name = strncmp(line, "coding ", 7) == 0 ? line + 7 : "";
        unsigned coding = 0;
        while (coding_names[coding] != NULL && strcmp(coding_names[coding], name) != 0)
            coding++;
        if (coding_names[coding] == NULL) {
            print_error(NULL, "%s asks for what this version does not know", connection->remote);
            return true;
        }
        if (strait_set_policy(server->end.pool, (enum strait_coding)coding) != STRAIT_OK ||
            !bench_sides_work(&side, 1, 0) || !send_line(connection, "ok", side))
            return !interrupted();
    }
    return !interrupted();
}

/* One reader, with a daemon for it. False: the bench is to end. */
static bool serve_one(struct server *server, int fd)
{
    struct connection connection;
    char *text = NULL;
    bool good;

    connection_init(&connection, fd);
    good = end_open(&server->end, "server", connection.local, &server->asked->daemon, server->values.codebook) &&
           strait_pool_serve(server->end.pool, NULL, 0) == STRAIT_OK && (text = describe(server)) != NULL;
    if (good) {
        printf("%s reads\n", connection.remote);
        fflush(stdout);
        good = !send_line(&connection, text, &server->end.side) || answer(server, &connection);
    }
    free(text);
    good = end_close(&server->end) && good;
    connection_fini(&connection);
    return good;
}

/* -1: failed, with the error on stderr. */
static int listen_at(uint16_t port)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    const struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int on = 1, off = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool six = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0;

    if (fd < 0) /* a kernel without IPv6 */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, six ? (const struct sockaddr *)&any : (const struct sockaddr *)&any4,
             six ? sizeof(any) : sizeof(any4)) == 0 &&
        listen(fd, 4) == 0)
        return fd;
    print_error(NULL, "cannot listen at port %u: %s", port, strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

static bool serve(const struct hosts_options *asked)
{
    static struct server server;
    int listener = -1;
    bool good;

    server.asked = asked;
    good = server_make(&server) && (listener = listen_at((uint16_t)asked->port)) >= 0;
    if (good) {
        printf("serves %u pages of %llu bytes at port %u until interrupted\n", server.end.pages,
               (unsigned long long)server.end.page_bytes, port_of(listener));
        fflush(stdout);
    }
    while (good && !interrupted()) {
        int fd = wait_for(listener, POLLIN, NULL) > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        good = fd < 0 || serve_one(&server, fd);
    }
    if (listener >= 0)
        close(listener);
    end_free(&server.end);
    free(server.codebook);
    free(server.sums);
    values_close(&server.values);
    return good || interrupted();
}

/* ---- The host that reads ----------------------------------------------------------------------------------------- */

struct row {
    enum strait_coding coding;
    uint32_t pages;
    unsigned samples, count;        /* of a turn; so far */
    uint64_t *ns;                   /* owned */
    uint64_t raw_bytes, wire_bytes; /* of all samples */
    uint64_t wrong;
    const struct row *raw; /* the row of as many pages with which it is compared */
};

struct reader {
    const struct hosts_options *asked;
    struct connection connection;
    struct end end;
    struct strait_codebook *codebook;
    struct strait_peer *peer;
    uint8_t *sums;       /* XXH64_canonical_t of each page */
    uint32_t *from, *to; /* page ids in random order */
    struct row rows[ROWS_MAX];
    unsigned row_count;
    bool flipped; /* the fault that was asked for has been made */
};

/* -1: failed, with the error on stderr. */
static int dial(const char *host, uint16_t port)
{
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[8];
    int fd = -1, failure;

    snprintf(service, sizeof(service), "%u", port);
    failure = getaddrinfo(host, service, &wanted, &found);
    if (failure != 0) {
        print_error(NULL, "%s: %s", host, gai_strerror(failure));
        return -1;
    }
    for (const struct addrinfo *at = found; fd < 0 && at != NULL; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
            failure = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0)
        print_error(NULL, "%s, port %u: %s; does strait bench hosts --serve run there?", host, port, strerror(failure));
    return fd;
}

static bool number_of(const cJSON *object, const char *name, uint64_t max, uint64_t *value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    bool good = cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble <= (double)max;

    *value = good ? (uint64_t)item->valuedouble : 0;
    return good && (double)*value == item->valuedouble;
}

/* Takes the first line: memory, sums and codebook; the pool's blob is the caller's. NULL: it is not what it should be.
 */
static uint8_t *take_description(struct reader *reader, const cJSON *object, size_t *blob_bytes)
{
    uint64_t version, page_bytes, pages;
    size_t codebook_bytes, sum_bytes;
    uint8_t *codebook = json_read_hex(object, "codebook", &codebook_bytes),
            *blob = json_read_hex(object, "pool", blob_bytes);
    bool good = number_of(object, "bench_hosts", VERSION, &version) &&
                number_of(object, "page_bytes", STRAIT_PAGE_BYTES_MAX, &page_bytes) && page_bytes % 16 == 0 &&
                number_of(object, "pages", PAGES_MAX, &pages) && pages * page_bytes <= POOL_MAX;

    reader->sums = json_read_hex(object, "sums", &sum_bytes);
    good = good && reader->sums != NULL && sum_bytes == pages * sizeof(XXH64_canonical_t) && blob != NULL &&
           codebook != NULL && strait_codebook_parse(codebook, codebook_bytes, &reader->codebook) == STRAIT_OK;
    free(codebook);
    if (!good)
        print_error(NULL, "%s does not run this version of strait bench hosts --serve", reader->connection.remote);
    if (good && end_alloc(&reader->end, page_bytes, (uint32_t)pages))
        return blob;
    free(blob);
    return NULL;
}

/* Opens everything up to the first request. */
static bool reader_open(struct reader *reader)
{
    struct connection *connection = &reader->connection;
    int fd = dial(reader->asked->peer, (uint16_t)reader->asked->port);
    size_t size = 0;
    bool closed = false, good;

    if (fd < 0)
        return false;
    connection_init(connection, fd);
    const char *line = receive_line(connection, LINE_MAX_OUT, ANSWER_NS, NULL, &closed);
    if (closed)
        print_error(NULL, "%s has closed the connection; its own output says why", connection->remote);
    if (line == NULL)
        return false;
    cJSON *object = cJSON_Parse(line);
    uint8_t *blob = take_description(reader, object, &size);
    good =
        blob != NULL && end_open(&reader->end, "reader", connection->local, &reader->asked->daemon, reader->codebook);
    enum strait_status status =
        good ? strait_peer_import(reader->end.side.client, blob, size, &reader->peer) : STRAIT_OK;
    if (status != STRAIT_OK)
        print_error(NULL, "%s: its pool cannot be taken: %s", connection->remote, strait_status_string(status));
    free(blob);
    cJSON_Delete(object);
    return good && status == STRAIT_OK;
}

static bool plan(struct reader *reader)
{
    const struct hosts_options *asked = reader->asked;
    const struct end *end = &reader->end;

    if (most_pages(asked) > end->pages) {
        print_error(NULL, "--pages: %s serves %u pages", reader->connection.remote, end->pages);
        return false;
    }
    for (unsigned p = 0; p < asked->pages.count; p++) {
        const struct row *raw = NULL;
        for (unsigned c = 0; c < asked->codings.count && reader->row_count < ROWS_MAX; c++) {
            struct row *row = &reader->rows[reader->row_count++];
            *row = (struct row){.coding = (enum strait_coding)asked->codings.list[c],
                                .pages = (uint32_t)asked->pages.list[p],
                                .samples = samples_in_turn(asked->samples, asked->pages.list[p] * end->page_bytes)};
            row->ns = calloc(row->samples * asked->repeats, sizeof(row->ns[0]));
            raw = row->coding == STRAIT_CODING_RAW ? row : raw;
            row->raw = row->coding == STRAIT_CODING_RAW ? NULL : raw;
            if (row->ns == NULL) {
                print_error(NULL, "out of memory");
                return false;
            }
        }
    }
    reader->from = calloc(end->pages, sizeof(reader->from[0]));
    reader->to = calloc(end->pages, sizeof(reader->to[0]));
    if (reader->from == NULL || reader->to == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    random_order(reader->from, end->pages, 1);
    random_order(reader->to, end->pages, 2);
    return true;
}

static uint64_t count_wrong(struct reader *reader, const struct row *row)
{
    uint64_t wrong = 0;

    if (reader->asked->common.fault.count > 0 && !reader->flipped)
        page_at(&reader->end, reader->to[0])[reader->end.page_bytes / 2] ^= 1;
    reader->flipped = true;
    for (uint32_t i = 0; i < row->pages; i++)
        wrong += XXH3_64bits(page_at(&reader->end, reader->to[i]), reader->end.page_bytes) !=
                 XXH64_hashFromCanonical((const XXH64_canonical_t *)reader->sums + reader->from[i]);
    return wrong;
}

/* One request; `kept`: its time is one of the row's. */
static bool sample(struct reader *reader, struct row *row, bool kept)
{
    struct bench_side *side = &reader->end.side;
    struct bench_leg leg = {0};
    const struct strait_page_list to = {.count = row->pages, .ids = reader->to},
                                  from = {.count = row->pages, .ids = reader->from};
    const struct strait_read_params params = {.size = sizeof(params),
                                              .lists = &to,
                                              .list_count = 1,
                                              .peer_lists = &from,
                                              .peer_list_count = 1,
                                              .deadline_ms = DEADLINE_MS,
                                              .context = &leg};
    enum strait_status status;
    uint64_t began;
    bool good = true;

    for (uint32_t i = 0; i < row->pages; i++)
        memset(page_at(&reader->end, reader->to[i]), WIPED, reader->end.page_bytes);
    began = clock_ns();
    status = strait_read(reader->end.pool, reader->peer, &params, &leg.transfer);
    if (status != STRAIT_OK) {
        print_error(NULL, "read: %s", strait_status_string(status));
        return false;
    }
    while (good && (!leg.ended || !leg.drained))
        good = bench_sides_work(&side, 1, TURN_NS);
    if (good && leg.state == STRAIT_FAILED) {
        print_error(NULL, "a read from %s failed: %s%s%s", reader->connection.remote, strait_reason_string(leg.reason),
                    leg.text[0] != '\0' ? ": " : "", leg.text);
        bench_side_print_log(side);
        good = false;
    }
    row->wrong += good ? count_wrong(reader, row) : 0;
    if (good && kept) {
        row->ns[row->count++] = leg.ended_ns - began;
        row->raw_bytes += leg.raw_bytes;
        row->wire_bytes += leg.wire_bytes;
    }
    strait_release(leg.transfer);
    return good;
}

/* A turn of a row, after a sample that is not kept and in which the other host has changed its coding. */
static bool run_turn(struct reader *reader, struct row *row)
{
    char line[LINE_MAX_IN];
    const char *told;
    bool good, closed = false;

    snprintf(line, sizeof(line), "coding %s", coding_names[row->coding]);
    good = send_line(&reader->connection, line, &reader->end.side);
    told = good ? receive_line(&reader->connection, LINE_MAX_IN, ANSWER_NS, &reader->end.side, &closed) : NULL;
    if (closed || (told != NULL && strcmp(told, "ok") != 0))
        print_error(NULL, "%s has closed the connection; its own output says why", reader->connection.remote);
    good = told != NULL && strcmp(told, "ok") == 0 && sample(reader, row, false);
    for (unsigned i = 0; good && i < row->samples; i++)
        good = sample(reader, row, true);
    return good && !interrupted();
}

static const struct column columns[] = {
    {"coding", NULL, "coding", COLUMN_TEXT},      {"page_bytes", NULL, "page", COLUMN_SIZE},
    {"pages", NULL, "pages", COLUMN_COUNT},       {"bytes", NULL, "bytes", COLUMN_SIZE},
    {"ratio", NULL, "ratio", COLUMN_RATIO},       {"ms.p50", "ms", "p50", COLUMN_NUMBER},
    {"ms.p90", "ms", "p90", COLUMN_NUMBER},       {"ms.p99", "ms", "p99", COLUMN_NUMBER},
    {"GBps.p50", "GB/s", "p50", COLUMN_NUMBER},   {"GBps.min", "GB/s", "min", COLUMN_NUMBER},
    {"GBps.max", "GB/s", "max", COLUMN_NUMBER},   {"x_raw", NULL, "x raw", COLUMN_NUMBER},
    {"wrong_pages", NULL, "check", COLUMN_CHECK},
};
static const struct table tables[] = {TABLE("rows", NULL, NULL, columns)};

static bool report_row(struct report *report, const struct reader *reader, const struct row *row)
{
    static const char *const percentiles[] = {"p50", "p90", "p99", NULL};
    const uint64_t bytes = row->pages * reader->end.page_bytes;
    double *list = calloc(row->count, sizeof(list[0]));
    cJSON *object = report_add_row(report, "rows");

    if (list == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    cJSON_AddStringToObject(object, "coding", coding_names[row->coding]);
    cJSON_AddNumberToObject(object, "page_bytes", (double)reader->end.page_bytes);
    cJSON_AddNumberToObject(object, "pages", row->pages);
    cJSON_AddNumberToObject(object, "bytes", (double)bytes);
    json_add_known(object, "ratio", row->wire_bytes == 0 ? 0 : (double)row->raw_bytes / (double)row->wire_bytes);
    for (unsigned i = 0; i < row->count; i++)
        list[i] = (double)bytes / (double)row->ns[i];
    row_add_figures(object, "GBps", list, row->count, p50_min_max);
    for (unsigned i = 0; i < row->count; i++)
        list[i] = (double)row->ns[i] * 1e-6;
    row_add_figures(object, "ms", list, row->count, percentiles);
    row_add_times(object, "ns", row->ns, row->count);
    json_add_known(object, "x_raw",
                   row->raw == NULL ? 0
                                    : times_by_base(row->ns, row->samples, row->raw->ns, row->raw->samples,
                                                    (unsigned)reader->asked->repeats));
    cJSON_AddNumberToObject(object, "wrong_pages", (double)row->wrong);
    free(list);
    return true;
}

static bool read_all(struct reader *reader, struct report *report)
{
    const struct hosts_options *asked = reader->asked;
    bool good = reader_open(reader) && plan(reader);

    for (unsigned turn = 0; good && turn < asked->repeats; turn++)
        for (unsigned i = 0; good && i < reader->row_count; i++)
            good = run_turn(reader, &reader->rows[(turn + i) % reader->row_count]);
    if (!good)
        return false;
    cJSON_AddStringToObject(report->root, "peer", reader->connection.remote);
    cJSON_AddStringToObject(report->root, "address", reader->connection.local);
    row_add_texts(report->root, "daemon_options", asked->daemon.list, asked->daemon.count);
    cJSON_AddNumberToObject(report->root, "repeats", (double)asked->repeats);
    for (unsigned i = 0; good && i < reader->row_count; i++)
        good = report_row(report, reader, &reader->rows[i]);
    return good && report_finish(report, tables, sizeof(tables) / sizeof(tables[0]));
}

static void reader_fini(struct reader *reader)
{
    end_close(&reader->end);
    end_free(&reader->end);
    connection_fini(&reader->connection);
    strait_codebook_destroy(reader->codebook);
    for (unsigned i = 0; i < reader->row_count; i++)
        free(reader->rows[i].ns);
    free(reader->sums);
    free(reader->from);
    free(reader->to);
}

int bench_hosts(int argc, char **argv)
{
    static struct hosts_options asked;
    static struct reader reader = {.asked = &asked, .connection = {.fd = -1}};
    struct report report;
    enum exit_code code;
    bool good;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    if (!daemon_options_good(&asked.daemon))
        return EXIT_CODE_USAGE;
    if (asked.serve == (asked.peer != NULL)) {
        print_error(NULL, "takes one of --serve and --peer HOST");
        return EXIT_CODE_USAGE;
    }
    interrupts_catch();
    if (asked.serve) {
        good = serve(&asked);
    } else {
        good = report_init(&report, &asked.common) && read_all(&reader, &report);
        reader_fini(&reader);
        report_fini(&report);
    }
    if (interrupted() && !asked.serve)
        print_error(NULL, "interrupted");
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
