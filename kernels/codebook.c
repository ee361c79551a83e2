#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "kernels/block.h"
#include "kernels/codebook.h"
#include "kernels/codebook.pb-c.h"
#include "kernels/codebook_file.h"
#include "kernels/device.h"

bool codebook_id(uint8_t id[STRAIT_CODEBOOK_ID_BYTES], const uint8_t (*rankings)[256], uint32_t count)
{
    uint8_t head[12] = "STRAITCB";
    uint8_t digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    store_le32(head + 8, count);
    bool ok = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(ctx, head, sizeof(head)) == 1 &&
              EVP_DigestUpdate(ctx, rankings, (size_t)count * 256) == 1 && EVP_DigestFinal_ex(ctx, digest, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    if (ok)
        memcpy(id, digest, STRAIT_CODEBOOK_ID_BYTES);
    return ok;
}

/* Start of the window of 32 exponents whose low ranks weigh most; weights fall with the rank as frequencies do. */
static uint8_t best_window(const uint8_t rank[256])
{
    uint32_t best = 0;
    uint8_t window = 0;
    for (unsigned start = 0; start <= 256 - 32; start++) {
        uint32_t weight = 0;
        for (unsigned e = start; e < start + 32; e++)
            weight += rank[e] < TIER4_RANK ? 1u << (TIER4_RANK - 1 - rank[e]) : 0;
        if (weight > best) {
            best = weight;
            window = (uint8_t)start;
        }
    }
    return window;
}

/* Sets the window's first exponent, at most 224, and finds the exponents of low rank outside it: outliers, and unseen
 * ones in a table of few exponents. */
static void table_set_window(struct table *table, uint8_t window)
{
    table->window = window;
    table->stray_count = 0;
    for (unsigned r = 0; r < TIER4_RANK; r++) {
        uint8_t e = table->exponent[r];
        if (e >= table->window && e < table->window + 32)
            continue;
        if (table->stray_count < TABLE_STRAYS)
            table->strays[table->stray_count] = e;
        table->stray_count++;
    }
}

/* The rank of exponent 0, that of zeros: the last rank that has a short code in both coders. */
#define RANK_OF_ZERO 15u

/* How far the exponent of a rank lies below the base, modulo 256. */
static uint8_t distance_of(unsigned rank)
{
    static const uint8_t first[21] = {1, 2, 3, 0, 4, 5, 6, 255, 7, 254, 8, 253, 9, 10, 11, 12, 13, 14, 15, 252, 251};
    return rank < sizeof(first) ? first[rank] : (uint8_t)(rank - 5);
}

static void exchange(struct table *table, unsigned rank, unsigned other)
{
    uint8_t exponent = table->exponent[rank];
    table->exponent[rank] = table->exponent[other];
    table->exponent[other] = exponent;
    table->rank[table->exponent[rank]] = (uint8_t)rank;
    table->rank[exponent] = (uint8_t)other;
}

void base_table(struct table *table, uint8_t base)
{
    for (unsigned r = 0; r < 256; r++) {
        table->exponent[r] = (uint8_t)(base - distance_of(r));
        table->rank[table->exponent[r]] = (uint8_t)r;
    }
    if (table->rank[0] > RANK_OF_ZERO)
        exchange(table, RANK_OF_ZERO, table->rank[0]);
    table_set_window(table, base < 26 ? 0 : base > 250 ? 224 : base - 26);
}

void parts_table(struct table *table)
{
    static const uint8_t first[21] = {255, 254, 253, 0,   252, 251, 250, 249, 248, 247, 246,
                                      245, 244, 243, 242, 241, 240, 1,   2,   3,   128};
    memset(table->rank, 255, sizeof(table->rank));
    for (unsigned r = 0; r < sizeof(first); r++)
        table->rank[table->exponent[r] = first[r]] = (uint8_t)r;
    for (unsigned symbol = 0, r = sizeof(first); symbol < 256; symbol++)
        if (table->rank[symbol] == 255)
            table->rank[table->exponent[r] = (uint8_t)symbol] = (uint8_t)r, r++;
    memcpy(table->rank + 256, table->rank, TABLE_WRAP);
    table->window = 240;
    table->stray_count = 1;
    memset(table->strays, 0, sizeof(table->strays));
    table->strays[0] = 128;
}

/* False when the ranking is no permutation of 0..255. */
static bool table_init(struct table *table, const uint8_t ranking[256])
{
    uint8_t seen[256] = {0};
    for (unsigned r = 0; r < 256; r++) {
        if (seen[ranking[r]]++)
            return false;
        table->rank[ranking[r]] = (uint8_t)r;
    }
    memcpy(table->exponent, ranking, 256);
    table_set_window(table, best_window(table->rank));
    return true;
}

static int compare_classes(const void *a, const void *b)
{
    const struct strait_class *x = a, *y = b;
    if (x->role != y->role)
        return x->role < y->role ? -1 : 1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

/* Refuses a class that two tables claim: it could not be looked up. Table 0 is the fallback and has no class. */
static enum strait_status check_classes(const struct strait_class *classes, uint32_t count)
{
    enum strait_status status = STRAIT_OK;
    struct strait_class *sorted = malloc(sizeof(*sorted) * count);
    if (sorted == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy(sorted, classes, sizeof(*sorted) * count);
    qsort(sorted + 1, count - 1, sizeof(*sorted), compare_classes);
    for (uint32_t i = 1; i < count && status == STRAIT_OK; i++) {
        bool known = sorted[i].role >= STRAIT_ROLE_OTHER && sorted[i].role <= STRAIT_ROLE_KV && sorted[i].layer >= -1;
        if (!known || (i > 1 && compare_classes(&sorted[i - 1], &sorted[i]) == 0))
            status = STRAIT_ERR_INVALID;
    }
    free(sorted);
    return status;
}

enum strait_status strait_codebook_create(const uint8_t (*rankings)[256], const struct strait_class *classes,
                                          uint32_t count, struct strait_codebook **codebook)
{
    if (rankings == NULL || codebook == NULL || count == 0 || count > STRAIT_CODEBOOK_TABLES_MAX)
        return STRAIT_ERR_INVALID;
    enum strait_status status = classes == NULL ? STRAIT_OK : check_classes(classes, count);
    if (status != STRAIT_OK)
        return status;
    struct strait_codebook *set = calloc(1, sizeof(*set) + sizeof(set->tables[0]) * count);
    if (set == NULL)
        return STRAIT_ERR_NO_MEMORY;
    set->count = count;
    if (classes != NULL) {
        set->classes = malloc(sizeof(*classes) * count);
        if (set->classes == NULL) {
            status = STRAIT_ERR_NO_MEMORY;
            goto err_set;
        }
        memcpy(set->classes, classes, sizeof(*classes) * count);
    }
    for (uint32_t t = 0; t < count; t++) {
        if (!table_init(&set->tables[t], rankings[t])) {
            status = STRAIT_ERR_INVALID;
            goto err_set;
        }
    }
    if (!codebook_id(set->id, rankings, count)) {
        status = STRAIT_ERR_NO_MEMORY;
        goto err_set;
    }
    *codebook = set;
    return STRAIT_OK;
err_set:
    strait_codebook_destroy(set);
    return status;
}

void strait_codebook_destroy(struct strait_codebook *codebook)
{
    if (codebook == NULL)
        return;
    free(codebook->classes);
    free(codebook->expected);
    free(codebook->counts);
    free(codebook);
}

const uint8_t *strait_codebook_id(const struct strait_codebook *codebook)
{
    return codebook->id;
}

uint32_t strait_codebook_count(const struct strait_codebook *codebook)
{
    return codebook->count;
}

const uint8_t *strait_codebook_ranking(const struct strait_codebook *codebook, uint32_t table)
{
    return table < codebook->count ? codebook->tables[table].exponent : NULL;
}

struct strait_class strait_codebook_class(const struct strait_codebook *codebook, uint32_t table)
{
    if (table == 0 || table >= codebook->count || codebook->classes == NULL)
        return (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
    return codebook->classes[table];
}

/* ---- Rankings ------------------------------------------------------------------------------------------------- */

struct counted {
    uint64_t count;
    uint8_t exponent;
};

static int by_falling_count(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (int)x->exponent - (int)y->exponent;
}

void strait_histogram_rank(uint8_t ranking[256], const uint64_t counts[256])
{
    struct counted order[256];
    for (unsigned e = 0; e < 256; e++)
        order[e] = (struct counted){.count = counts[e], .exponent = (uint8_t)e};
    qsort(order, 256, sizeof(order[0]), by_falling_count);
    for (unsigned r = 0; r < 256; r++)
        ranking[r] = order[r].exponent;
}

/* ---- What a set was made of ------------------------------------------------------------------------------------ */

uint64_t codebook_tiered_bits(const uint64_t counts[256], const uint8_t ranking[256])
{
    static const struct {
        unsigned begin, bits;
    } tiers[] = {{0, 2}, {TIER2_RANK, 4}, {TIER3_RANK, 8}, {TIER4_RANK, 16}, {256, 0}};
    uint64_t bits = 0;
    for (unsigned t = 0; t < 4; t++)
        for (unsigned r = tiers[t].begin; r < tiers[t + 1].begin; r++)
            bits += tiers[t].bits * counts[ranking[r]];
    return bits;
}

static uint64_t sum_of(const uint64_t counts[256])
{
    uint64_t sum = 0;
    for (unsigned e = 0; e < 256; e++)
        sum += counts[e];
    return sum;
}

const uint64_t *strait_codebook_counts(const struct strait_codebook *codebook, uint32_t table)
{
    if (codebook->counts == NULL || table >= codebook->count || sum_of(codebook->counts[table]) == 0)
        return NULL;
    return codebook->counts[table];
}

uint32_t strait_codebook_expected(const struct strait_codebook *codebook, uint32_t table)
{
    return codebook->expected == NULL || table >= codebook->count ? 0 : codebook->expected[table];
}

static bool keep_counts(struct strait_codebook *set, const uint64_t (*counts)[256])
{
    set->counts = malloc(set->count * sizeof(*set->counts));
    set->expected = calloc(set->count, sizeof(*set->expected));
    if (set->counts == NULL || set->expected == NULL)
        return false;
    memcpy(set->counts, counts, set->count * sizeof(*set->counts));
    for (uint32_t t = 0; t < set->count; t++) {
        const uint64_t values = sum_of(counts[t]);
        const double bits = (double)codebook_tiered_bits(counts[t], set->tables[t].exponent);
        set->expected[t] = values == 0 ? 0 : (uint32_t)(1000 * bits / (double)values + 0.5);
    }
    return true;
}

enum strait_status strait_codebook_create_counted(const uint64_t (*counts)[256], const struct strait_class *classes,
                                                  uint32_t count, struct strait_codebook **codebook)
{
    if (counts == NULL || codebook == NULL || count == 0 || count > STRAIT_CODEBOOK_TABLES_MAX)
        return STRAIT_ERR_INVALID;
    struct strait_codebook *set = NULL;
    uint8_t(*rankings)[256] = malloc(count * sizeof(*rankings));
    if (rankings == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < count; t++)
        strait_histogram_rank(rankings[t], counts[t]);
    enum strait_status status = strait_codebook_create((const uint8_t(*)[256])rankings, classes, count, &set);
    free(rankings);
    if (status == STRAIT_OK && !keep_counts(set, counts)) {
        strait_codebook_destroy(set);
        status = STRAIT_ERR_NO_MEMORY;
    }
    if (status == STRAIT_OK)
        *codebook = set;
    return status;
}

/* ---- Groups of histograms -------------------------------------------------------------------------------------- */

/* What a table costs where all of a set travel with the values, as in files. */
#define TABLE_BITS (8u * 256u)

/* A histogram that joins a group may cost a 128th more by the group's table than by one of its own. */
#define JOIN_SHARE 128u

struct grouped {
    const uint64_t *counts;
    uint32_t index;
    uint64_t values;
};

struct group {
    uint64_t counts[256];
    uint8_t ranking[256];
};

/* The largest first; equal ones in any order give equal groups. */
static int by_values(const void *a, const void *b)
{
    const struct grouped *x = a, *y = b;
    if (x->values != y->values)
        return x->values > y->values ? -1 : 1;
    return memcmp(x->counts, y->counts, 256 * sizeof(x->counts[0]));
}

/* The group by whose table the counts cost least, and how much. */
static uint32_t best_group(const struct group *groups, uint32_t count, const uint64_t counts[256], uint64_t *bits)
{
    uint32_t best = 0;
    *bits = UINT64_MAX;
    for (uint32_t g = 0; g < count; g++) {
        const uint64_t cost = codebook_tiered_bits(counts, groups[g].ranking);
        if (cost < *bits) {
            *bits = cost;
            best = g;
        }
    }
    return best;
}

static void join(struct group *group, const uint64_t counts[256])
{
    for (unsigned e = 0; e < 256; e++)
        group->counts[e] += counts[e];
    strait_histogram_rank(group->ranking, group->counts);
}

enum strait_status strait_histogram_group(const uint64_t (*counts)[256], uint32_t count, uint32_t most, uint32_t *group,
                                          uint32_t *group_count)
{
    if (counts == NULL || group == NULL || group_count == NULL || most == 0)
        return STRAIT_ERR_INVALID;
    most = most < count ? most : count;
    struct grouped *sorted = malloc(((size_t)count + 1) * sizeof(*sorted));
    struct group *groups = calloc((size_t)most + 1, sizeof(*groups));
    enum strait_status status = sorted == NULL || groups == NULL ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
    uint32_t made = 0;
    for (uint32_t i = 0; status == STRAIT_OK && i < count; i++)
        sorted[i] = (struct grouped){counts[i], i, sum_of(counts[i])};
    if (status == STRAIT_OK)
        qsort(sorted, count, sizeof(*sorted), by_values);
    for (uint32_t i = 0; status == STRAIT_OK && i < count; i++) {
        uint8_t own[256];
        uint64_t bits;
        strait_histogram_rank(own, sorted[i].counts);
        const uint64_t own_bits = codebook_tiered_bits(sorted[i].counts, own);
        uint32_t joined = best_group(groups, made, sorted[i].counts, &bits);
        if (made < most && (made == 0 || bits > own_bits + own_bits / JOIN_SHARE + TABLE_BITS))
            joined = made++;
        join(&groups[joined], sorted[i].counts);
        group[sorted[i].index] = joined;
    }
    free(groups);
    free(sorted);
    if (status == STRAIT_OK)
        *group_count = made;
    return status;
}

/* ---- Finding --------------------------------------------------------------------------------------------------- */

static uint32_t find_exact(const struct strait_codebook *codebook, struct strait_class wanted)
{
    for (uint32_t t = 1; t < codebook->count; t++)
        if (codebook->classes[t].role == wanted.role && codebook->classes[t].layer == wanted.layer)
            return t;
    return 0;
}

uint32_t strait_codebook_find(const struct strait_codebook *codebook, struct strait_class wanted)
{
    if (codebook->classes == NULL)
        return 0;
    uint32_t table = find_exact(codebook, wanted);
    if (table == 0)
        table = find_exact(codebook, (struct strait_class){.role = wanted.role, .layer = -1});
    return table;
}

#define MARK            0x42435453u
#define VERSION         1u
#define EXPONENTS       256u
#define LAYER_UNCLASSED (-2) /* in files only: the set has no classes, its tables are found by index */

/* protobuf turns two bytes of input into an allocation of a hundred. No valid file needs more than this. */
#define UNPACK_BYTES_MAX (4 * (size_t)CODEBOOK_FILE_BYTES_MAX)

static const uint8_t first_bytes[] = {0x0d, 'S', 'T', 'C', 'B'};

/* ---- Unpacking ------------------------------------------------------------------------------------------------- */

/* The unpacker returns NULL for every error; the budget knows whether the cause was memory. */
struct budget {
    size_t left;
    bool out_of_memory;
};

static void *budget_alloc(void *arg, size_t size)
{
    struct budget *budget = arg;
    if (size > budget->left)
        return NULL;
    budget->left -= size;
    void *block = malloc(size);
    budget->out_of_memory |= block == NULL;
    return block;
}

static void budget_free(void *arg, void *block)
{
    (void)arg;
    free(block);
}

/* A field may occur twice, and then the last one counts: hence the mark is checked here too. */
static enum strait_status check_head(const Strait__CodebookSet *set)
{
    if (set->mark != MARK || set->version == 0)
        return STRAIT_ERR_CORRUPT;
    return set->version == VERSION ? STRAIT_OK : STRAIT_ERR_UNSUPPORTED;
}

/* On success the caller must strait__codebook_set__free_unpacked(*message, NULL), which works since budget_free is
 * free(). */
static enum strait_status message_unpack(const void *src, size_t src_size, Strait__CodebookSet **message)
{
    struct budget budget = {.left = UNPACK_BYTES_MAX};
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
    if (src_size > CODEBOOK_FILE_BYTES_MAX || !codebook_file_probe(src, src_size))
        return STRAIT_ERR_CORRUPT;
    Strait__CodebookSet *set = strait__codebook_set__unpack(&allocator, src_size, src);
    if (set == NULL)
        return budget.out_of_memory ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_CORRUPT;
    enum strait_status status = check_head(set);
    if (status == STRAIT_OK)
        *message = set;
    else
        strait__codebook_set__free_unpacked(set, NULL);
    return status;
}

bool codebook_file_probe(const void *src, size_t src_size)
{
    return src_size >= sizeof(first_bytes) && memcmp(src, first_bytes, sizeof(first_bytes)) == 0;
}

/* ---- Packing --------------------------------------------------------------------------------------------------- */

/* Serialized messages written one after another parse as one message with the fields of all. So a file is packed as a
 * head, one message for each table and, in partial files, a tail, without building the whole in memory. */

static Strait__CodebookSet message_head(const uint8_t *id)
{
    Strait__CodebookSet head = STRAIT__CODEBOOK_SET__INIT;
    head.mark = MARK;
    head.version = VERSION;
    if (id != NULL)
        head.id = (ProtobufCBinaryData){.len = STRAIT_CODEBOOK_ID_BYTES, .data = (uint8_t *)id};
    return head;
}

/* With dst NULL only computes the size. */
static size_t pack(uint8_t *dst, const Strait__CodebookSet *message)
{
    return dst == NULL ? strait__codebook_set__get_packed_size(message) : strait__codebook_set__pack(message, dst);
}

static size_t pack_table(uint8_t *dst, Strait__Table *table)
{
    Strait__CodebookSet message = STRAIT__CODEBOOK_SET__INIT;
    message.tables = &table;
    message.n_tables = 1;
    return pack(dst, &message);
}

/* Address of the piece after one of `size` bytes. */
static uint8_t *after(uint8_t *dst, size_t size)
{
    return dst == NULL ? NULL : dst + size;
}

/* ---- Sets ------------------------------------------------------------------------------------------------------ */

static struct strait_class table_class(const Strait__Table *table)
{
    return (struct strait_class){.role = (enum strait_role)table->role, .layer = table->layer};
}

/* Whether all tables but the fallback are found by index. If only some are, strait_codebook_create refuses the set. */
static bool set_is_unclassed(const Strait__CodebookSet *set)
{
    for (size_t t = 1; t < set->n_tables; t++)
        if (set->tables[t]->role != STRAIT__ROLE__ROLE_OTHER || set->tables[t]->layer != LAYER_UNCLASSED)
            return false;
    return true;
}

static enum strait_status set_create(const Strait__CodebookSet *set, uint8_t (*rankings)[EXPONENTS],
                                     struct strait_class *classes, struct strait_codebook **codebook)
{
    for (size_t t = 0; t < set->n_tables; t++) {
        if (set->tables[t]->ranking.len != EXPONENTS ||
            (set->tables[t]->n_counts != 0 && set->tables[t]->n_counts != EXPONENTS))
            return STRAIT_ERR_CORRUPT;
        memcpy(rankings[t], set->tables[t]->ranking.data, EXPONENTS);
        classes[t] = table_class(set->tables[t]);
    }
    if (classes[0].role != STRAIT_ROLE_OTHER || classes[0].layer != -1)
        return STRAIT_ERR_CORRUPT;
    enum strait_status status =
        strait_codebook_create((const uint8_t(*)[EXPONENTS])rankings, set_is_unclassed(set) ? NULL : classes,
                               (uint32_t)set->n_tables, codebook);
    return status == STRAIT_ERR_INVALID ? STRAIT_ERR_CORRUPT : status;
}

/* Copies what the file says of the values that the set was made of. */
static enum strait_status copy_origin(const Strait__CodebookSet *set, struct strait_codebook *codebook)
{
    bool counted = false, expects = false;
    for (size_t t = 0; t < set->n_tables; t++) {
        counted |= set->tables[t]->n_counts != 0;
        expects |= set->n_expected == set->n_tables && set->expected[t] != 0;
    }
    if (expects) {
        codebook->expected = malloc(set->n_tables * sizeof(*codebook->expected));
        if (codebook->expected == NULL)
            return STRAIT_ERR_NO_MEMORY;
        memcpy(codebook->expected, set->expected, set->n_tables * sizeof(*codebook->expected));
    }
    if (counted) {
        codebook->counts = calloc(set->n_tables, sizeof(*codebook->counts));
        if (codebook->counts == NULL)
            return STRAIT_ERR_NO_MEMORY;
        for (size_t t = 0; t < set->n_tables; t++)
            if (set->tables[t]->n_counts != 0)
                memcpy(codebook->counts[t], set->tables[t]->counts, sizeof(codebook->counts[t]));
    }
    return STRAIT_OK;
}

static enum strait_status set_parse(const Strait__CodebookSet *set, struct strait_codebook **codebook)
{
    if (set->n_tables == 0 || set->n_tables > STRAIT_CODEBOOK_TABLES_MAX)
        return STRAIT_ERR_CORRUPT;
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    struct strait_codebook *created = NULL;
    uint8_t(*rankings)[EXPONENTS] = malloc(sizeof(*rankings) * set->n_tables);
    struct strait_class *classes = malloc(sizeof(*classes) * set->n_tables);
    if (rankings != NULL && classes != NULL)
        status = set_create(set, rankings, classes, &created);
    free(classes);
    free(rankings);
    if (status != STRAIT_OK)
        return status;
    if (set->id.len != STRAIT_CODEBOOK_ID_BYTES ||
        memcmp(set->id.data, strait_codebook_id(created), STRAIT_CODEBOOK_ID_BYTES) != 0)
        status = STRAIT_ERR_CORRUPT;
    else
        status = copy_origin(set, created);
    if (status == STRAIT_OK)
        *codebook = created;
    else
        strait_codebook_destroy(created);
    return status;
}

enum strait_status strait_codebook_parse(const void *src, size_t src_size, struct strait_codebook **codebook)
{
    Strait__CodebookSet *set;
    if (src == NULL || codebook == NULL)
        return STRAIT_ERR_INVALID;
    enum strait_status status = message_unpack(src, src_size, &set);
    if (status != STRAIT_OK)
        return status;
    status = set_parse(set, codebook);
    strait__codebook_set__free_unpacked(set, NULL);
    return status;
}

/* Peers fetch sets too, and those of up to 4096 tables without counts: larger files are written without. */
#define COUNTED_BYTES_MAX ((size_t)1 << 20)

static size_t set_pack_origin(uint8_t *dst, const struct strait_codebook *codebook, bool counted)
{
    /* A set made without classes finds none of its tables by class, a set made with classes finds them all. */
    bool unclassed = strait_codebook_find(codebook, strait_codebook_class(codebook, 1)) == 0;
    Strait__CodebookSet head = message_head(strait_codebook_id(codebook));
    head.expected = codebook->expected;
    head.n_expected = codebook->expected == NULL ? 0 : codebook->count;
    size_t size = pack(dst, &head);
    for (uint32_t t = 0; t < strait_codebook_count(codebook); t++) {
        struct strait_class class = strait_codebook_class(codebook, t);
        const uint64_t *counts = counted ? strait_codebook_counts(codebook, t) : NULL;
        Strait__Table table = STRAIT__TABLE__INIT;
        table.role = (Strait__Role) class.role;
        table.layer = unclassed && t > 0 ? LAYER_UNCLASSED : class.layer;
        table.ranking.data = (uint8_t *)strait_codebook_ranking(codebook, t);
        table.ranking.len = EXPONENTS;
        table.counts = (uint64_t *)counts;
        table.n_counts = counts == NULL ? 0 : EXPONENTS;
        size += pack_table(after(dst, size), &table);
    }
    return size;
}

static size_t set_pack(uint8_t *dst, const struct strait_codebook *codebook)
{
    const bool counted = codebook->counts != NULL && set_pack_origin(NULL, codebook, true) <= COUNTED_BYTES_MAX;
    return set_pack_origin(dst, codebook, counted);
}

size_t strait_codebook_serialized_size(const struct strait_codebook *codebook)
{
    return set_pack(NULL, codebook);
}

enum strait_status strait_codebook_serialize(const struct strait_codebook *codebook, void *dst, size_t dst_capacity)
{
    if (codebook == NULL || dst == NULL)
        return STRAIT_ERR_INVALID;
    if (dst_capacity < set_pack(NULL, codebook))
        return STRAIT_ERR_NO_SPACE;
    set_pack(dst, codebook);
    return STRAIT_OK;
}

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

int codebook_class_compare(struct strait_class a, struct strait_class b)
{
    if (a.role != b.role)
        return a.role < b.role ? -1 : 1;
    return (a.layer > b.layer) - (a.layer < b.layer);
}

static bool class_is_known(struct strait_class class)
{
    return (class.role >= STRAIT_ROLE_OTHER && class.role <= STRAIT_ROLE_KV) && class.layer >= -1;
}

/* Adds the counts to *total. False when all counts are zero or the sum does not fit. */
static bool add_values(uint64_t *total, const uint64_t counts[EXPONENTS])
{
    uint64_t before = *total;
    for (unsigned e = 0; e < EXPONENTS; e++)
        if (__builtin_add_overflow(*total, counts[e], total))
            return false;
    return *total > before;
}

/* Whether a list is as codebook_partial_parse promises; *total becomes the number of all its values. */
static bool list_is_valid(const struct codebook_histogram *list, uint32_t count, uint64_t *total)
{
    *total = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!class_is_known(list[i].class) || !add_values(total, list[i].counts))
            return false;
        if (i > 0 && codebook_class_compare(list[i - 1].class, list[i].class) >= 0)
            return false;
    }
    return count >= 1 && count < STRAIT_CODEBOOK_TABLES_MAX;
}

static bool copy_histogram(struct codebook_histogram *histogram, const Strait__Table *table)
{
    if (table->ranking.len != 0 || table->n_counts != EXPONENTS)
        return false;
    histogram->class = table_class(table);
    memcpy(histogram->counts, table->counts, sizeof(histogram->counts));
    return true;
}

static enum strait_status partial_parse(const Strait__CodebookSet *set, struct codebook_histogram **list)
{
    if (set->id.len != 0)
        return STRAIT_ERR_INVALID;
    if (set->n_tables == 0 || set->n_tables >= STRAIT_CODEBOOK_TABLES_MAX)
        return STRAIT_ERR_CORRUPT;
    struct codebook_histogram *copy = malloc(sizeof(*copy) * set->n_tables);
    if (copy == NULL)
        return STRAIT_ERR_NO_MEMORY;
    bool valid = true;
    uint64_t total;
    for (size_t t = 0; t < set->n_tables && valid; t++)
        valid = copy_histogram(&copy[t], set->tables[t]);
    if (!valid || !list_is_valid(copy, (uint32_t)set->n_tables, &total) || total != set->values) {
        free(copy);
        return STRAIT_ERR_CORRUPT;
    }
    *list = copy;
    return STRAIT_OK;
}

enum strait_status codebook_partial_parse(const void *src, size_t src_size, struct codebook_histogram **list,
                                          uint32_t *count)
{
    Strait__CodebookSet *set;
    enum strait_status status = message_unpack(src, src_size, &set);
    if (status != STRAIT_OK)
        return status;
    status = partial_parse(set, list);
    if (status == STRAIT_OK)
        *count = (uint32_t)set->n_tables;
    strait__codebook_set__free_unpacked(set, NULL);
    return status;
}

static size_t partial_pack(uint8_t *dst, const struct codebook_histogram *list, uint32_t count)
{
    Strait__CodebookSet head = message_head(NULL), tail = STRAIT__CODEBOOK_SET__INIT;
    size_t size = pack(dst, &head);
    for (uint32_t i = 0; i < count; i++) {
        Strait__Table table = STRAIT__TABLE__INIT;
        table.role = (Strait__Role)list[i].class.role;
        table.layer = list[i].class.layer;
        table.counts = (uint64_t *)list[i].counts;
        table.n_counts = EXPONENTS;
        size += pack_table(after(dst, size), &table);
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        for (unsigned e = 0; e < EXPONENTS; e++)
            total += list[i].counts[e];
    tail.values = total;
    return size + pack(after(dst, size), &tail);
}

size_t codebook_partial_serialized_size(const struct codebook_histogram *list, uint32_t count)
{
    return partial_pack(NULL, list, count);
}

enum strait_status codebook_partial_serialize(const struct codebook_histogram *list, uint32_t count, void *dst,
                                              size_t dst_capacity)
{
    uint64_t total;
    if (!list_is_valid(list, count, &total))
        return STRAIT_ERR_INVALID;
    size_t size = partial_pack(NULL, list, count);
    if (size > CODEBOOK_FILE_BYTES_MAX || size > dst_capacity)
        return STRAIT_ERR_NO_SPACE;
    partial_pack(dst, list, count);
    return STRAIT_OK;
}

_Static_assert(sizeof(struct table_image) % 16 == 0, "bulk copies");

static uint32_t tiers_of(unsigned rank)
{
    if (rank < TIER2_RANK)
        return rank;
    return 3u | (rank < TIER3_RANK ? rank - TIER2_RANK : 3u) << 16;
}

static uint8_t tier3_of(unsigned rank)
{
    if (rank < TIER3_RANK)
        return 0;
    return (uint8_t)(rank < TIER4_RANK ? rank - TIER3_RANK : 15);
}

static void make_table(struct table_image *image, const struct table *table)
{
    memset(image, 0, sizeof(*image));
    for (unsigned e = 0; e < 256; e++) {
        unsigned rank = table->rank[e];
        image->tiers[e] = tiers_of(rank);
        image->tier3[e] = image->tier3[e + 256] = tier3_of(rank);
        image->top16[e] = rank < TOP16_RANKS ? rank : IMAGE_ESCAPE;
    }
    memcpy(image->first, table->exponent, TIER3_RANK);
    memcpy(image->third, table->exponent + TIER3_RANK, TIER4_RANK - TIER3_RANK);
    memcpy(image->codes, table->exponent, TOP16_RANKS);
    memcpy(image->rank, table->rank, 256);
}

size_t strait_codebook_image_size(const struct strait_codebook *codebook)
{
    return IMAGE_HEADER_BYTES + (size_t)codebook->count * sizeof(struct table_image);
}

enum strait_status strait_codebook_image(const struct strait_codebook *codebook, void *dst, size_t dst_capacity)
{
    uint8_t *at = dst;
    struct table_image image;
    if (dst == NULL || dst_capacity < strait_codebook_image_size(codebook))
        return STRAIT_ERR_NO_SPACE;
    memset(at, 0, IMAGE_HEADER_BYTES);
    memcpy(at, codebook->id, STRAIT_CODEBOOK_ID_BYTES);
    for (uint32_t t = 0; t < codebook->count; t++) {
        make_table(&image, &codebook->tables[t]);
        memcpy(at + IMAGE_HEADER_BYTES + t * sizeof(image), &image, sizeof(image));
    }
    return STRAIT_OK;
}
