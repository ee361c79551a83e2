#include "daemon/base/tenants.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/option_table.h"

#define AT(field) offsetof(struct tenant, field)

static const struct option_row limit_rows[] = {
    {.name = "pool-bytes", .kind = OPTION_BYTES, .offset = AT(pool_bytes), .min = 1, .max = (uint64_t)1 << 50},
    {.name = "transfers", .kind = OPTION_COUNT, .offset = AT(transfers), .min = 1, .max = 1u << 24},
    {.name = "rate", .kind = OPTION_BYTES, .offset = AT(rate), .min = 1u << 20, .max = (uint64_t)1 << 44},
};

void tenants_default(struct tenants *tenants)
{
    memset(tenants, 0, sizeof(*tenants));
    strcpy(tenants->list[0].name, "default");
    tenants->count = 1;
}

/* ---- Parsing ----------------------------------------------------------------------------------------------------- */

struct parser {
    struct tenants *tenants;
    struct tenant *tenant; /* NULL: none has begun */
    bool named[TENANTS_MAX];
};

static enum strait_status invalid(struct option_error *error, const char *where, const char *name, const char *value,
                                  size_t value_size, const char *why)
{
    char quoted[128];
    log_quote(quoted, sizeof(quoted), value, value_size);
    snprintf(error->text, sizeof(error->text), "%s: %s: %s %s", where, name, quoted, why);
    return STRAIT_ERR_INVALID;
}

static bool name_is_good(const char *name, size_t size)
{
    if (size == 0 || size > TENANT_NAME_MAX)
        return false;
    for (size_t i = 0; i < size; i++)
        if ((name[i] < 'a' || name[i] > 'z') && (name[i] < '0' || name[i] > '9') &&
            memchr("._-", name[i], 3) == NULL) /* not strchr: it finds a NUL */
            return false;
    return true;
}

/* "default" may be given limits, but no ids. */
static enum strait_status begin_tenant(struct parser *parser, const char *where, const char *value, size_t size,
                                       struct option_error *error)
{
    struct tenants *tenants = parser->tenants;
    if (!name_is_good(value, size))
        return invalid(error, where, "tenant", value, size, "is not a name of up to 32 of a-z, 0-9, '.', '_' and '-'");
    uint32_t i = 0;
    while (i < tenants->count &&
           (strlen(tenants->list[i].name) != size || memcmp(tenants->list[i].name, value, size) != 0))
        i++;
    if (i < tenants->count && parser->named[i])
        return invalid(error, where, "tenant", value, size, "is there twice");
    if (i == TENANTS_MAX)
        return invalid(error, where, "tenant", value, size, "is one too many: there may be 63 besides default");
    if (i == tenants->count) {
        memcpy(tenants->list[i].name, value, size);
        tenants->count++;
    }
    parser->named[i] = true;
    parser->tenant = &tenants->list[i];
    return STRAIT_OK;
}

static bool number_of(const char *text, uint32_t *id)
{
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || number >= UINT32_MAX)
        return false;
    *id = (uint32_t)number;
    return true;
}

static bool id_of(const char *text, bool is_group, uint32_t *id)
{
    if (number_of(text, id))
        return true;
    const struct group *group = is_group ? getgrnam(text) : NULL;
    const struct passwd *user = is_group ? NULL : getpwnam(text);
    if (group == NULL && user == NULL)
        return false;
    *id = group != NULL ? group->gr_gid : user->pw_uid;
    return true;
}

static const char *add_id(struct parser *parser, const char *text, bool is_group)
{
    struct tenants *tenants = parser->tenants;
    struct tenant_id id = {.is_group = is_group, .tenant = (uint32_t)(parser->tenant - tenants->list)};
    if (id.tenant == 0)
        return "cannot belong to default, which has whoever belongs to no other tenant";
    if (!id_of(text, is_group, &id.id))
        return is_group ? "is no group, by name or number" : "is no user, by name or number";
    for (uint32_t i = 0; i < tenants->id_count; i++)
        if (tenants->ids[i].id == id.id && tenants->ids[i].is_group == is_group)
            return "is named twice";
    if (tenants->id_count == TENANT_IDS_MAX)
        return "is one too many: there may be 1024 ids";
    tenants->ids[tenants->id_count++] = id;
    return NULL;
}

static enum strait_status add_ids(struct parser *parser, const char *where, const char *name, const char *list,
                                  size_t size, struct option_error *error)
{
    for (size_t at = 0; at <= size;) {
        char text[64];
        size_t from = at;
        while (at < size && list[at] != ',')
            at++;
        size_t to = at++;
        while (from < to && list[from] == ' ')
            from++;
        while (to > from && list[to - 1] == ' ')
            to--;
        if (to == from || to - from >= sizeof(text) || memchr(list + from, '\0', to - from) != NULL)
            return invalid(error, where, name, list, size, "is not a list of names and numbers, separated by commas");
        memcpy(text, list + from, to - from);
        text[to - from] = '\0';
        const char *why = add_id(parser, text, name[0] == 'g');
        if (why != NULL)
            return invalid(error, where, name, text, to - from, why);
    }
    return STRAIT_OK;
}

static bool is_word(const char *word, const char *text, size_t size)
{
    return strlen(word) == size && memcmp(word, text, size) == 0;
}

static enum strait_status set_limit(struct parser *parser, const char *where, const char *name, size_t name_size,
                                    const char *value, size_t size, struct option_error *error)
{
    char why[160];
    for (size_t i = 0; i < sizeof(limit_rows) / sizeof(limit_rows[0]); i++) {
        if (!is_word(limit_rows[i].name, name, name_size))
            continue;
        if (option_set(&limit_rows[i], parser->tenant, value, size, why, sizeof(why)))
            return STRAIT_OK;
        return invalid(error, where, limit_rows[i].name, value, size, why);
    }
    return invalid(error, where, "no option of tenants is called", name, name_size, "");
}

static enum strait_status take(void *arg, const char *where, const char *name, size_t name_size, const char *value,
                               size_t size, struct option_error *error)
{
    struct parser *parser = arg;
    if (is_word("others", name, name_size)) {
        parser->tenants->refuse_others = is_word("refuse", value, size);
        if (parser->tenants->refuse_others || is_word("accept", value, size))
            return STRAIT_OK;
        return invalid(error, where, "others", value, size, "is neither accept nor refuse");
    }
    if (is_word("tenant", name, name_size))
        return begin_tenant(parser, where, value, size, error);
    if (parser->tenant == NULL)
        return invalid(error, where, "before the first tenant there is only others, not", name, name_size, "");
    if (is_word("uids", name, name_size) || is_word("gids", name, name_size))
        return add_ids(parser, where, name[0] == 'g' ? "gids" : "uids", value, size, error);
    return set_limit(parser, where, name, name_size, value, size, error);
}

enum strait_status tenants_text(struct tenants *tenants, const char *text, size_t size, const char *where,
                                struct option_error *error)
{
    struct tenants *made = malloc(sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    tenants_default(made);
    struct parser parser = {.tenants = made};
    enum strait_status status = option_lines(text, size, where, take, &parser, error);
    if (status == STRAIT_OK)
        *tenants = *made;
    free(made);
    return status;
}

enum strait_status tenants_file(struct tenants *tenants, const char *path, struct option_error *error)
{
    struct tenants *made = malloc(sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    tenants_default(made);
    struct parser parser = {.tenants = made};
    enum strait_status status = option_file_lines(path, take, &parser, error);
    if (status == STRAIT_OK)
        *tenants = *made;
    free(made);
    return status;
}

/* ---- Reading again ----------------------------------------------------------------------------------------------- */

bool tenant_is_there(const struct tenant *tenant)
{
    return !tenant->removed || tenant->mapped != 0 || tenant->live != 0 || tenant->clients != 0;
}

/* The place of a name among the first `count`, or `count`. */
static uint32_t place_of(const struct tenants *tenants, uint32_t count, const char *name)
{
    uint32_t i = 0;
    while (i < count && strcmp(tenants->list[i].name, name) != 0)
        i++;
    return i;
}

/* Gives a tenant of `fresh` its place: the one that has its name, or else an empty one. False: there is none. */
static bool place(struct tenants *tenants, const struct tenant *fresh, uint32_t *at)
{
    *at = place_of(tenants, TENANTS_MAX, fresh->name);
    if (*at == TENANTS_MAX)
        *at = place_of(tenants, TENANTS_MAX, "");
    if (*at == TENANTS_MAX)
        return false;
    struct tenant *tenant = &tenants->list[*at];
    memcpy(tenant->name, fresh->name, sizeof(tenant->name));
    tenant->removed = false;
    tenant->pool_bytes = fresh->pool_bytes;
    tenant->transfers = fresh->transfers;
    tenant->rate = fresh->rate;
    return true;
}

bool tenants_follow(struct tenants *fresh, const struct tenants *now)
{
    struct tenants made = *now;
    uint32_t places[TENANTS_MAX];
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        struct tenant *tenant = &made.list[i];
        tenant->removed = place_of(fresh, fresh->count, tenant->name) == fresh->count;
        if (!tenant_is_there(tenant))
            *tenant = (struct tenant){.removed = true};
    }
    for (uint32_t i = 0; i < fresh->count; i++)
        if (!place(&made, &fresh->list[i], &places[i]))
            return false;
    made.count = TENANTS_MAX;
    while (made.list[made.count - 1].name[0] == '\0') /* the first is always there */
        made.count--;
    for (uint32_t i = 0; i < fresh->id_count; i++) {
        made.ids[i] = fresh->ids[i];
        made.ids[i].tenant = places[fresh->ids[i].tenant];
    }
    made.id_count = fresh->id_count;
    made.refuse_others = fresh->refuse_others;
    *fresh = made;
    return true;
}

/* ---- Clients ----------------------------------------------------------------------------------------------------- */

static struct tenant *find(struct tenants *tenants, uint32_t id, bool is_group)
{
    for (uint32_t i = 0; i < tenants->id_count; i++)
        if (tenants->ids[i].id == id && tenants->ids[i].is_group == is_group)
            return &tenants->list[tenants->ids[i].tenant];
    return NULL;
}

struct tenant *tenants_find(struct tenants *tenants, uint32_t uid, uint32_t gid)
{
    struct tenant *tenant = find(tenants, uid, false);
    if (tenant == NULL)
        tenant = find(tenants, gid, true);
    return tenant != NULL || tenants->refuse_others ? tenant : &tenants->list[0];
}

/* ---- Rate -------------------------------------------------------------------------------------------------------- */

#define BUCKET_MS 100u

bool tenant_may_grant(struct tenant *tenant, uint64_t now_ms)
{
    if (tenant->rate == 0)
        return true;
    const uint64_t passed = now_ms - tenant->filled_ms;
    const int64_t most = (int64_t)(tenant->rate / (1000 / BUCKET_MS));
    if (passed > 0) {
        /* A minute's rate fits 64 bits, and no debt is larger. */
        int64_t more = (int64_t)(tenant->rate * (passed < 60000 ? passed : 60000) / 1000);
        tenant->tokens = tenant->tokens + more < most ? tenant->tokens + more : most;
        tenant->filled_ms = now_ms;
    }
    return tenant->tokens > 0;
}

void tenant_granted(struct tenant *tenant, uint64_t bytes)
{
    if (tenant->rate != 0)
        tenant->tokens -= (int64_t)bytes;
}

bool is_default_tenant(struct view name)
{
    static const char usual[] = "default";
    return name.size == 0 || (name.size == sizeof(usual) - 1 && memcmp(name.data, usual, name.size) == 0);
}

struct view tenant_view(const struct tenant *tenant)
{
    struct view name = view_of(tenant->name, strlen(tenant->name));
    return is_default_tenant(name) ? view_of("", 0) : name;
}
