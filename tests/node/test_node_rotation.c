/* Secrets and certificates are changed on one node after the other while transfers run: not one of them fails, whether
 * its daemons are connected already or not. A visitor, a node that has just been started, sees to connections that are
 * made in every state: it dials, or is dialled. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/certificates.h"
#include "tests/node/harness.h"

enum { RESIDENTS = 2, VISITOR = RESIDENTS, PLACES, ROUND = 12, PAGES_EACH = 4, PAGES = 2 * ROUND * PAGES_EACH };

/* A node with one client, whose pool sends from its first half and receives in the other. */
struct place {
    struct test_node *node;
    struct party *party;
    struct test_pool *pool;
};

static struct place places[PLACES];
static uint32_t names;

static void place_open(struct place *place)
{
    test_node_start(place->node);
    place->party = party_open(place->node);
    place->pool = pool_open(place->party, (struct geometry){.pages = PAGES});
    pool_fill(place->pool, names);
}

static void place_init(int number, const char *transports)
{
    static const char *const of_nodes[PLACES] = {"a", "b", "visitor"};
    places[number] = (struct place){.node = &nodes[number]};
    test_node_init(&nodes[number], of_nodes[number], transports);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* As an operator replaces a file: it is never half there. */
static void replace(const char *path, const char *text)
{
    char fresh[512];
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    const int fd = open(fresh, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq((int)strlen(text), (int)write(fd, text, strlen(text)));
    close(fd);
    ck_assert_int_eq(0, rename(fresh, path));
}

static void give_secret(struct test_node *node, int number)
{
    struct node_options *o = &node->options;
    char text[64];
    snprintf(o->secret_file, sizeof(o->secret_file), "%.200s.secret", o->socket);
    snprintf(text, sizeof(text), "secret number %d of the nodes", number);
    replace(o->secret_file, text);
}

enum { AUTHORITIES = 3 };

static struct authority authorities[AUTHORITIES];

/* A certificate of one authority. */
static void give_certificate(struct test_node *node, int issuer)
{
    struct node_options *o = &node->options;
    snprintf(o->tls_certificate, sizeof(o->tls_certificate), "%.200s.certificate", o->socket);
    snprintf(o->tls_key, sizeof(o->tls_key), "%.200s.key", o->socket);
    unlink(o->tls_key);
    certificate_write(&authorities[issuer], "IP:127.0.0.1", 3600, 1, o->tls_certificate, o->tls_key);
}

/* Trust in the authorities from the first to the last. */
static void give_trust(struct test_node *node, int first, int last)
{
    struct node_options *o = &node->options;
    char text[16384], part[256];
    size_t size = 0;
    snprintf(part, sizeof(part), "%.200s.part", o->socket);
    snprintf(o->tls_ca, sizeof(o->tls_ca), "%.200s.ca", o->socket);
    for (int i = first; i <= last; i++) {
        authority_write(&authorities[i], part);
        FILE *file = fopen(part, "re");
        ck_assert_ptr_nonnull(file);
        size += fread(text + size, 1, sizeof(text) - 1 - size, file);
        fclose(file);
    }
    text[size] = '\0';
    replace(o->tls_ca, text);
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static struct move move_of(struct place *source, struct place *sink, uint32_t slot)
{
    const struct strait_page_list out = {.first_id = slot * PAGES_EACH, .count = PAGES_EACH};
    const struct strait_page_list in = {.first_id = (ROUND + slot) * PAGES_EACH, .count = PAGES_EACH};
    struct move move;
    move.offer = OFFER(source->pool, name_of(names++), .lists = &out, .list_count = 1, .last = true);
    move.expectation = PULL(sink->pool, move.offer, .lists = &in, .list_count = 1);
    return move;
}

/* Transfers between all places, one half before the resident reloads (NULL: none does) and the other one after. The
 * side that pulls dials; the residents know each other. */
static void move_around(bool visitor_dials, struct test_node *reloads)
{
    struct move moves[ROUND];
    for (uint32_t i = 0; i < ROUND; i++) {
        struct place *resident = &places[i % RESIDENTS], *other = &places[i % 4 < 2 ? VISITOR : (i + 1) % RESIDENTS];
        const bool from_resident = visitor_dials && other == &places[VISITOR];
        moves[i] = move_of(from_resident ? resident : other, from_resident ? other : resident, i);
        if (i == ROUND / 2 && reloads != NULL)
            test_node_reload(reloads);
        else
            pump(0);
    }
    for (uint32_t i = 0; i < ROUND; i++) {
        ends_done(moves[i].expectation);
        ends_done(moves[i].offer);
        landed(moves[i].expectation, moves[i].offer);
        flow_release(moves[i].expectation);
        flow_release(moves[i].offer);
    }
    for (int i = 0; i < PLACES; i++)
        ck_assert(pool_as_imagined(places[i].pool));
}

/* Visitors come and go: the first one while the resident reloads. Both leave the files as they find them. */
static void visits(struct test_node *reloads)
{
    for (int dials = 0; dials < 2; dials++) {
        place_open(&places[VISITOR]);
        move_around(dials == 1, dials == 0 ? reloads : NULL);
        party_close(places[VISITOR].party);
        test_node_stop(places[VISITOR].node);
    }
}

static void open_residents(void)
{
    for (int i = 0; i < RESIDENTS; i++)
        place_open(&places[i]);
}

static void nothing_was_lost(void)
{
    for (int i = 0; i < RESIDENTS; i++)
        ck_assert_uint_eq(0, places[i].party->disconnects);
}

/* As security.md says it: the file on one node after the other, with a SIGHUP each, and once more when all have it. */
TEST_LOOP(no_request_fails_while_the_secret_is_changed, WIRES - 1)
{
    for (int i = 0; i < PLACES; i++) {
        place_init(i, _i + SHM == SHM ? "shm" : "tcp");
        give_secret(&nodes[i], 0);
    }
    open_residents();
    for (int number = 1; number <= 2; number++) {
        for (int i = 0; i < RESIDENTS; i++) {
            give_secret(&nodes[i], number); /* the visitor is a node that has not got it yet */
            visits(&nodes[i]);
        }
        give_secret(&nodes[VISITOR], number);
        for (int i = 0; i < RESIDENTS; i++)
            visits(&nodes[i]);
    }
    nothing_was_lost();
    place_open(&places[VISITOR]);
    give_secret(&nodes[0], 3);
    test_node_reload(&nodes[0]);
    test_node_reload(&nodes[0]);
    struct move move = move_of(&places[0], &places[VISITOR], 0); /* the test can fail: that secret counts no longer */
    stays_undecided(move.expectation, 300);
}

/* Another authority: first all trust both, then each gets a certificate of the new one, and then the old one goes. */
TEST_LOOP(no_request_fails_while_certificates_and_their_authority_are_changed, WIRES - 1)
{
    static const char *const of_authorities[AUTHORITIES] = {"first", "second", "third"};
    for (int i = 0; i < AUTHORITIES; i++)
        authorities[i] = authority_make(of_authorities[i]);
    for (int i = 0; i < PLACES; i++) {
        place_init(i, _i + SHM == SHM ? "shm" : "tcp");
        give_certificate(&nodes[i], 0);
        give_trust(&nodes[i], 0, 0);
    }
    open_residents();
    for (int number = 1; number < AUTHORITIES; number++) {
        for (int i = 0; i < PLACES; i++) {
            give_trust(&nodes[i], number - 1, number);
            visits(i != VISITOR ? &nodes[i] : NULL);
        }
        for (int i = 0; i < PLACES; i++) {
            give_certificate(&nodes[i], number);
            visits(i != VISITOR ? &nodes[i] : NULL);
        }
        for (int i = 0; i < PLACES; i++) {
            give_trust(&nodes[i], number, number);
            visits(i != VISITOR ? &nodes[i] : NULL);
        }
    }
    nothing_was_lost();
    for (int i = 0; i < AUTHORITIES; i++)
        authority_free(&authorities[i]);
}

int main(void)
{
    return node_main("node_rotation");
}
