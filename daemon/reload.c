#include "daemon/reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clients.h"
#include "daemon/source.h"

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

void reload_drop(struct reload *reload)
{
    strait_codebook_destroy(reload->codebook);
    credentials_release(reload->credentials);
    free(reload->tenants);
    reload->codebook = NULL;
    reload->credentials = NULL;
    reload->tenants = NULL;
}

static enum strait_status read_codebook(struct reload *reload, char *why, size_t why_size)
{
    char what[512];
    enum strait_status status = codebook_load(reload->options.codebook, &reload->codebook, what, sizeof(what));
    if (status != STRAIT_OK)
        snprintf(why, why_size, "codebook: %s", what);
    return status;
}

static enum strait_status read_credentials(struct reload *reload, char *why, size_t why_size)
{
    return options_credentials(&reload->options, &reload->credentials, why, why_size);
}

static enum strait_status read_tenants(struct reload *reload, char *why, size_t why_size)
{
    struct option_error error = {"out of memory"};
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    reload->tenants = malloc(sizeof(*reload->tenants));
    if (reload->tenants != NULL) {
        tenants_default(reload->tenants);
        status = STRAIT_OK;
    }
    if (status == STRAIT_OK && reload->options.tenants_file[0] != '\0')
        status = tenants_file(reload->tenants, reload->options.tenants_file, &error);
    if (status != STRAIT_OK)
        snprintf(why, why_size, "tenants-file: %s", error.text);
    return status;
}

static enum strait_status (*const readers[])(struct reload *reload, char *why,
                                             size_t why_size) = {read_codebook, read_credentials, read_tenants};
enum { READERS = sizeof(readers) / sizeof(readers[0]) };

enum strait_status reload_read(const struct node_options *options, struct reload *reload, char *why, size_t why_size)
{
    enum strait_status status = STRAIT_OK;
    *reload = (struct reload){.options = *options};
    options_complete(&reload->options); /* as those in force are */
    for (int i = 0; i < READERS && status == STRAIT_OK; i++)
        status = readers[i](reload, why, why_size);
    if (status != STRAIT_OK)
        reload_drop(reload);
    return status;
}

void reload_try(const struct node_options *options, void (*bad)(void *owner, const char *why), void *owner)
{
    struct reload reload = {.options = *options};
    char why[600];
    for (int i = 0; i < READERS; i++)
        if (readers[i](&reload, why, sizeof(why)) != STRAIT_OK)
            bad(owner, why);
    reload_drop(&reload);
}

/* ---- Applying ---------------------------------------------------------------------------------------------------- */

static bool is_set_in_force(const struct node *node, const struct strait_codebook *codebook)
{
    const struct strait_codebook *now = node_codebook(node);
    if (now == NULL || codebook == NULL)
        return now == codebook;
    return memcmp(strait_codebook_id(now), strait_codebook_id(codebook), STRAIT_CODEBOOK_ID_BYTES) == 0;
}

/* Pools, jobs and devices change to the new set in one turn of the loop: jobs that have begun hold the old one, and so
 * do the `codebooks`, for chunks on the way. */
static void use_codebooks(struct node *node, struct codebooks *codebooks)
{
    struct pool_ref *pool, *next;
    jobs_set_codebooks(node->jobs, codebooks);
    HASH_ITER (hh, node->exchange.pools, pool, next)
        pool_choose_tables(pool->pool, codebooks_current(codebooks));
    struct source *source, *next_source;
    HASH_ITER (hh, node->exchange.sources, source, next_source)
        if (source->tiles != NULL)
            pool_choose_tables(&source->tiles->view->pool, codebooks_current(codebooks));
    codebooks_release(node->codebooks);
    node->codebooks = codebooks;
    peer_codebooks_changed(node);
    policy_codebook_changed(node);
    clients_tell_codebook(node);
}

/* Those of removed tenants that use nothing end with this turn, the others with their last request. */
static void use_tenants(struct node *node, const struct tenants *tenants)
{
    node->tenants = *tenants;
    node->sessions_ended = true;
    for (uint32_t i = 0; i < tenants->count; i++) {
        const struct tenant *tenant = &tenants->list[i];
        if (tenant->removed && tenant_is_there(tenant))
            log_write(node->log, LOG_INFO,
                      "msg=\"tenant removed\" tenant=%s clients=%llu transfers=%llu pool_bytes=%llu", tenant->name,
                      (unsigned long long)tenant->clients, (unsigned long long)tenant->live,
                      (unsigned long long)tenant->mapped);
    }
}

static void log_reload(struct node *node, const struct node_options *before, const struct node_options *fresh,
                       const char *codebook)
{
    char names[256];
    (void)options_differ(before, fresh, true, names, sizeof(names));
    log_write(node->log, LOG_INFO, "msg=reloaded options=\"%s\" codebook=%s", names, codebook);
    if (options_differ(before, fresh, false, names, sizeof(names)) > 0)
        log_write(node->log, LOG_WARN, "msg=\"needs a restart\" options=\"%s\"", names);
}

enum strait_status node_reload(struct node *node, struct reload *reload, char *why, size_t why_size)
{
    struct codebooks *codebooks = NULL;
    const struct node_options before = node->options;
    struct node_options options = before;
    enum strait_status status = node->stopping ? STRAIT_ERR_AGAIN : STRAIT_OK;
    const bool new_set = !is_set_in_force(node, reload->codebook);
    const struct strait_codebook *set = reload->codebook;
    snprintf(why, why_size, "%s", node->stopping ? "the daemon is stopping" : "out of memory");
    options_reload(&options, &reload->options);
    if (status == STRAIT_OK && !tenants_follow(reload->tenants, &node->tenants)) {
        status = STRAIT_ERR_NO_SPACE;
        snprintf(why, why_size, "tenants-file: %s: too many tenants with those that were removed and are still in use",
                 options.tenants_file);
    }
    if (status == STRAIT_OK && new_set) {
        status = codebooks_create(reload->codebook, node->codebooks, &codebooks);
        if (status == STRAIT_OK)
            reload->codebook = NULL; /* taken */
    }
    if (status == STRAIT_OK) {
        status = peers_reload(node->peers, reload->credentials, why, why_size);
        reload->credentials = NULL; /* taken */
    }
    if (status != STRAIT_OK) {
        codebooks_release(codebooks);
        reload_drop(reload);
        return status;
    }
    node->options = options;
    use_tenants(node, reload->tenants);
    peers_set_options(node->peers, &options);
    log_set_level(node->log, log_level_of(options.log_level));
    const bool changes = new_set && devices_set_codebook(node->devices, set);
    if (changes) {
        use_codebooks(node, codebooks);
        peers_set_codebook(node->peers, set != NULL ? strait_codebook_id(set) : NULL);
    } else {
        codebooks_release(codebooks);
    }
    log_reload(node, &before, &reload->options, changes ? "new" : "same");
    if (new_set && !changes)
        log_write(node->log, LOG_WARN, "msg=\"needs a restart\" options=codebook why=\"GPUs in use have its tables\"");
    reload_drop(reload);
    return STRAIT_OK;
}
