#include "tests/node/harness.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support.h"

struct test_node nodes[NODES_MAX];
char folder[64];
static const char *const wire_names[] = {"same", "shm", "tcp", "ucx"};

static struct party *parties[PARTIES_MAX];
static uint32_t party_count, kept_count, kept_room;
static int descriptors;
static void **kept;
static int reserved[4]; /* ports */
static uint32_t reserved_count;

void *keep(size_t size)
{
    if (kept_count == kept_room) {
        kept_room = kept_room != 0 ? 2 * kept_room : 64;
        kept = realloc(kept, kept_room * sizeof(*kept));
    }
    void *memory = calloc(1, size != 0 ? size : 1);
    ck_assert_ptr_nonnull(memory);
    return kept[kept_count++] = memory;
}

uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

void test_node_init(struct test_node *node, const char *name, const char *transports)
{
    struct node_options *o = &node->options;
    memset(node, 0, sizeof(*node));
    options_default(o);
    snprintf(o->socket, sizeof(o->socket), "%s/%s.sock", folder, name);
    snprintf(o->listen, sizeof(o->listen), "127.0.0.1:0");
    snprintf(o->transports, sizeof(o->transports), "%s", transports);
    snprintf(o->ucx, sizeof(o->ucx), "tls=tcp");
    o->metrics[0] = '\0';
    o->arena_bytes = 4u << 20;
    o->send_bytes = 2u << 20;
    o->chunk_bytes = 256u << 10;
    o->gpu_arena_bytes = 4u << 20;
    o->gpu_chunk_bytes = 256u << 10;
    o->heartbeat_ms = 100;
    o->peer_timeout_ms = 4000; /* longer than a busy machine keeps one of the threads waiting */
    o->connect_ms = 2000;
    o->drain_ms = 5000;
    pthread_mutex_init(&node->lock, NULL);
    pthread_cond_init(&node->ready, NULL);
}

void test_node_encrypt(struct test_node *node)
{
    static const char secret[] = "a secret of enough bytes";
    struct node_options *o = &node->options;
    snprintf(o->secret_file, sizeof(o->secret_file), "%.200s.secret", o->socket);
    int fd = open(o->secret_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq((int)sizeof(secret), (int)write(fd, secret, sizeof(secret)));
    close(fd);
    o->encrypt_pages = true;
}

/* False: none was asked for. */
static bool reload_asked(struct test_node *node)
{
    struct reload reload;
    char why[512];
    pthread_mutex_lock(&node->lock);
    const struct node_options *options = node->reload;
    if (options != NULL) {
        ck_assert_int_eq(STRAIT_OK, reload_read(options, &reload, why, sizeof(why)));
        ck_assert_int_eq(STRAIT_OK, node_reload(node->node, &reload, why, sizeof(why)));
        node->reload = NULL;
        pthread_cond_signal(&node->ready);
    }
    pthread_mutex_unlock(&node->lock);
    return options != NULL;
}

/* False: nobody asked for it. */
static bool was_frozen(struct test_node *node)
{
    pthread_mutex_lock(&node->lock);
    const bool frozen = node->frozen;
    while (node->frozen)
        pthread_cond_wait(&node->ready, &node->lock);
    pthread_mutex_unlock(&node->lock);
    return frozen;
}

static void on_stop(uv_async_t *async)
{
    struct test_node *node = async->data;
    if (was_frozen(node) || reload_asked(node))
        return;
    pthread_mutex_lock(&node->lock);
    bool drain = node->drain;
    pthread_mutex_unlock(&node->lock);
    if (!uv_is_closing((uv_handle_t *)async))
        node_stop(node->node, drain);
}

static void on_stopped(void *owner)
{
    struct test_node *node = owner;
    uv_close((uv_handle_t *)&node->stop, NULL);
}

static void on_gpu_failed(void *owner)
{
    struct test_node *node = owner;
    __atomic_fetch_add(&node->gpu_failed, 1, __ATOMIC_RELAXED);
}

static void *run_node(void *arg)
{
    struct test_node *node = arg;
    uv_loop_init(&node->loop);
    uv_async_init(&node->loop, &node->stop, on_stop);
    node->stop.data = node;
    enum strait_status status = node_create(&node->loop, &node->options, node->log, -1, on_stopped, node, &node->node,
                                            node->why, sizeof(node->why));
    if (status != STRAIT_OK && node->node != NULL)
        node_stop(node->node, false);
    if (node->node != NULL)
        node->node->gpu_failed = on_gpu_failed;
    pthread_mutex_lock(&node->lock);
    node->status = status;
    node->started = true;
    pthread_cond_signal(&node->ready);
    pthread_mutex_unlock(&node->lock);
    uv_run(&node->loop, UV_RUN_DEFAULT);
    node_destroy(node->node);
    node->loop_closed = uv_loop_close(&node->loop);
    return NULL;
}

void test_node_start(struct test_node *node)
{
    node->started = node->drain = false;
    ck_assert_int_eq(0, pthread_create(&node->thread, NULL, run_node, node));
    pthread_mutex_lock(&node->lock);
    while (!node->started)
        pthread_cond_wait(&node->ready, &node->lock);
    enum strait_status status = node->status;
    pthread_mutex_unlock(&node->lock);
    node->running = true;
    ck_assert_msg(status == STRAIT_OK, "%s: %s", node->options.socket, node->why);
}

void test_node_ask_stop(struct test_node *node, bool drain)
{
    pthread_mutex_lock(&node->lock);
    node->drain = drain;
    pthread_mutex_unlock(&node->lock);
    uv_async_send(&node->stop);
}

void test_node_reload(struct test_node *node)
{
    pthread_mutex_lock(&node->lock);
    node->reload = &node->options;
    uv_async_send(&node->stop);
    while (node->reload != NULL)
        pthread_cond_wait(&node->ready, &node->lock);
    pthread_mutex_unlock(&node->lock);
}

void test_node_freeze(struct test_node *node, bool frozen)
{
    pthread_mutex_lock(&node->lock);
    node->frozen = frozen;
    pthread_cond_signal(&node->ready);
    pthread_mutex_unlock(&node->lock);
    if (frozen)
        uv_async_send(&node->stop);
}

void test_node_join(struct test_node *node)
{
    pthread_join(node->thread, NULL);
    node->running = false;
    ck_assert_int_eq(0, node->loop_closed);
}

void test_node_stop(struct test_node *node)
{
    test_node_ask_stop(node, false);
    test_node_join(node);
}

unsigned reserve_port(void)
{
    ck_assert_uint_lt(reserved_count, COUNT(reserved));
    unsigned port = port_reserve(&reserved[reserved_count]);
    ck_assert_uint_ne(0, port);
    reserved_count++;
    return port;
}

void use_codebook(struct test_node *node, const char *name, uint8_t first)
{
    uint8_t ranking[256];
    for (unsigned i = 0; i < 256; i++)
        ranking[i] = (uint8_t)(first + i);
    use_ranking(node, name, ranking);
}

void use_ranking(struct test_node *node, const char *name, const uint8_t ranking[256])
{
    struct strait_codebook *codebook;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &codebook));
    size_t size = strait_codebook_serialized_size(codebook);
    void *bytes = keep(size);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_serialize(codebook, bytes, size));
    strait_codebook_destroy(codebook);
    snprintf(node->options.codebook, sizeof(node->options.codebook), "%s/%s.codebook", folder, name);
    FILE *file = fopen(node->options.codebook, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(size, fwrite(bytes, 1, size, file));
    fclose(file);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static void on_note(struct party *party, const struct strait_event *event)
{
    party->notes++;
    snprintf(party->note_key, sizeof(party->note_key), "%.*s", (int)event->key_size, (const char *)event->key);
    party->note_size = event->data_size;
    snprintf(party->note, sizeof(party->note), "%.*s", (int)event->data_size, (const char *)event->data);
    if (party->note[0] < '0' || party->note[0] > '9')
        return;
    party->notes_astray += (uint32_t)atoi(party->note) != party->next_note;
    party->notes_back += (uint32_t)atoi(party->note) < party->next_note;
    party->next_note = (uint32_t)atoi(party->note) + 1;
}

static void on_note_failed(struct party *party, const struct strait_event *event)
{
    party->notes_failed++;
    snprintf(party->note_text, sizeof(party->note_text), "%s", event->text);
    if (party->first_text[0] == '\0')
        memcpy(party->first_text, party->note_text, sizeof(party->first_text));
}

static void on_event(struct party *party, const struct strait_event *event)
{
    switch (event->type) {
    case STRAIT_EVENT_STATE:
    case STRAIT_EVENT_DRAINED:
    case STRAIT_EVENT_LAYER:
    case STRAIT_EVENT_PAGES:
        flow_event(event->context, event);
        break;
    case STRAIT_EVENT_POOL:
    case STRAIT_EVENT_POOL_REMOVED:
        pools_event(event);
        break;
    case STRAIT_EVENT_NOTE:
        on_note(party, event);
        break;
    case STRAIT_EVENT_NOTIFY_FAILED:
        on_note_failed(party, event);
        break;
    case STRAIT_EVENT_FENCED:
        (*(uint32_t *)event->context)++;
        break;
    case STRAIT_EVENT_STATS:
        free(party->stats);
        party->stats = strndup(event->data, event->data_size);
        break;
    case STRAIT_EVENT_CONNECTION:
        party->connects += event->connected;
        party->disconnects += !event->connected && event->status != STRAIT_ERR_IO; /* no daemon there yet */
        if (!event->connected)
            snprintf(party->lost, sizeof(party->lost), "%s", event->text);
        break;
    }
}

static uint32_t poll_clients(void)
{
    struct strait_event events[64];
    uint32_t all = 0, count;
    for (uint32_t p = 0; p < party_count; p++) {
        if (parties[p]->client == NULL || parties[p]->deaf)
            continue;
        count = strait_poll(parties[p]->client, events, COUNT(events));
        for (uint32_t i = 0; i < count; i++)
            on_event(parties[p], &events[i]);
        all += count;
    }
    return all;
}

uint64_t wait_clock(void)
{
    uint64_t late = machine_late_ns();
    return uv_hrtime() - late;
}

uint64_t ms_since(uint64_t began)
{
    uint64_t now = wait_clock(); /* it may stand still, and then catch up */
    return now > began ? (now - began) / 1000000 : 0;
}

void pump(int ms)
{
    struct pollfd fds[PARTIES_MAX];
    nfds_t count = 0;
    if (poll_clients() != 0)
        return;
    for (uint32_t p = 0; p < party_count; p++)
        if (parties[p]->client != NULL && !parties[p]->deaf)
            fds[count++] = (struct pollfd){.fd = strait_client_fd(parties[p]->client), .events = POLLIN};
    if (poll(fds, count, ms) > 0)
        (void)poll_clients();
}

void pump_for(int ms)
{
    for (uint64_t end = now_ms() + (uint64_t)ms; now_ms() < end;)
        pump((int)(end - now_ms()));
}

struct message channel_await(struct channel *channel, enum message_type type)
{
    struct message message = {0};
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    for (uint64_t end = wait_clock() + 15000000000u * SLOW; wait_clock() < end; pump_for(1)) {
        (void)channel_read(channel);
        enum strait_status status;
        while ((status = channel_next(channel, &message, fds, &fd_count)) == STRAIT_OK) {
            if (message.type == type)
                return message;
            message_fini(&message);
        }
        ck_assert_int_eq(STRAIT_ERR_AGAIN, status);
    }
    ck_abort_msg("no %s", message_name(type));
    return message;
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

static struct party *open_client(const struct strait_client_config *config)
{
    ck_assert_uint_lt(party_count, PARTIES_MAX);
    struct party *party = keep(sizeof(*party));
    ck_assert_int_eq(STRAIT_OK, strait_client_open(config, &party->client));
    return parties[party_count++] = party;
}

struct party *party_open(const struct test_node *node)
{
    struct strait_client_config config = {.size = sizeof(config), .socket = node->options.socket};
    return open_client(&config);
}

struct party *party_embedded(const char *options)
{
    struct strait_client_config config = {.size = sizeof(config), .embedded = options};
    return open_client(&config);
}

void party_close(struct party *party)
{
    strait_client_close(party->client);
    party->client = NULL;
    free(party->stats);
    party->stats = NULL;
}

char *stats_text(struct party *party)
{
    free(party->stats);
    party->stats = NULL;
    WAIT(strait_client_connected(party->client));
    ck_assert_int_eq(STRAIT_OK, strait_stats(party->client));
    WAIT(party->stats != NULL);
    return party->stats;
}

double stat_of(struct party *party, const char *path)
{
    cJSON *root = cJSON_Parse(stats_text(party)), *item = root;
    ck_assert_msg(root != NULL, "not JSON: %s", party->stats);
    char *copy = strdup(path);
    for (char *name = strtok(copy, "."); name != NULL; name = strtok(NULL, "."))
        item = cJSON_GetObjectItemCaseSensitive(item, name);
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    free(copy);
    cJSON_Delete(root);
    return value;
}

static bool quiet(struct party *party)
{
    static const char *const gauges[] = {"gauges.live_offers",     "gauges.live_expectations", "gauges.slots_used",
                                         "gauges.send_slots_used", "gauges.quarantined_pages", "gauges.parked"};
    for (int i = 0; i < COUNT(gauges); i++)
        if (stat_of(party, gauges[i]) != 0)
            return false;
    return true;
}

void wait_quiet(struct party *party)
{
    WAIT(quiet(party));
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------- */

struct pair pair_init(int wire)
{
    const char *transports = wire == SAME ? "shm" : wire_names[wire];
    struct pair pair = {.wire = (enum wire)wire, .a = &nodes[0], .b = wire == SAME ? &nodes[0] : &nodes[1]};
    test_node_init(&nodes[0], "a", transports);
    if (wire != SAME)
        test_node_init(&nodes[1], "b", transports);
    return pair;
}

struct pair pair_coded(int wire, const char *coding)
{
    struct pair pair = pair_init(wire);
    use_codebook(pair.a, "a", 0x7c);
    use_codebook(pair.b, "b", 0x7c);
    snprintf(pair.a->options.coding, sizeof(pair.a->options.coding), "%s", coding);
    return pair;
}

void pair_connect(struct pair *pair)
{
    test_node_start(pair->a);
    if (pair->b != pair->a)
        test_node_start(pair->b);
    pair->from = party_open(pair->a);
    pair->to = party_open(pair->b);
}

void pair_pools(struct pair *pair, struct geometry geometry)
{
    pair->source = pool_open(pair->from, geometry);
    geometry.gpu = geometry.sink_gpu != 0 ? geometry.sink_gpu : geometry.gpu;
    pair->sink = pool_open(pair->to, geometry);
    pool_fill(pair->source, 1);
}

void pair_start(struct pair *pair, struct geometry geometry)
{
    pair_connect(pair);
    pair_pools(pair, geometry);
}

struct pair pair_open(int wire, struct geometry geometry)
{
    struct pair pair = pair_init(wire);
    pair_start(&pair, geometry);
    return pair;
}

struct pair pair_embedded(const char *options, struct geometry geometry)
{
    struct party *party = party_embedded(options);
    struct pair pair = {.wire = SAME, .from = party, .to = party};
    pair_pools(&pair, geometry);
    return pair;
}

void pair_quiet(struct pair *pair)
{
    wait_quiet(pair->from);
    wait_quiet(pair->to);
}

/* ---- The fixture ------------------------------------------------------------------------------------------------- */

static int remove_path(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

void node_setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    snprintf(folder, sizeof(folder), "/tmp/strait-node-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    descriptors = open_descriptors();
}

void node_teardown(void)
{
    bool ucx = false;
    for (uint32_t i = 0; i < party_count; i++)
        if (parties[i]->client != NULL)
            party_close(parties[i]);
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        if (nodes[i].running)
            test_node_stop(&nodes[i]);
        ucx |= strstr(nodes[i].options.transports, "ucx") != NULL || strcmp(nodes[i].options.gpu_wires, "peer") != 0;
    }
    pools_close();
    while (reserved_count > 0)
        close(reserved[--reserved_count]);
    for (uint32_t i = 0; i < kept_count; i++)
        free(kept[i]);
    free(kept);
    kept = NULL;
    kept_count = kept_room = party_count = 0;
    nftw(folder, remove_path, 8, FTW_DEPTH | FTW_PHYS);
    if (ucx) /* it keeps some of its own */
        return;
    /* An embedded node ends behind its client's back, and libuv keeps a few for ever. */
    for (uint64_t end = now_ms() + 5000; open_descriptors() > descriptors + 4 && now_ms() < end;)
        usleep(5000);
    ck_assert_int_le(open_descriptors(), descriptors + 4);
}
