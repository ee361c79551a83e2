#include "kernels/codebook.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "internal/bytes.h"
#include "kernels/block.h"

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

/* The start of the window of 32 exponents whose low ranks weigh most; weights fall with the rank as frequencies do. */
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

void table_set_window(struct table *table, uint8_t window)
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
        bool known = sorted[i].role >= STRAIT_ROLE_OTHER && sorted[i].role <= STRAIT_ROLE_V && sorted[i].layer >= -1;
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
