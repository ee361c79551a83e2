#include "daemon/examine.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cjson/cJSON.h>
#include <strait/codec.h>
#include <strait/strait.h>

#include "daemon/base/address.h"
#include "daemon/check.h"
#include "daemon/probe.h"
#include "proto/message.h"
#include "transport/transport.h"
#if STRAIT_HAVE_UCX
#include "transport/ucx.h"
#endif

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

/* Splits what node_check has printed: a line for each problem. */
static void add_problems(const struct node_options *options, cJSON *array)
{
    static const char prefix[] = "straitd: ";
    char *text = NULL, *rest;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        return;
    (void)node_check(options, out);
    if (fclose(out) == 0)
        for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
            cJSON_AddItemToArray(
                array,
                cJSON_CreateString(strncmp(line, prefix, sizeof(prefix) - 1) == 0 ? line + sizeof(prefix) - 1 : line));
    free(text);
}

/* Adds the numeric addresses that an option stands for; none where it is wrong, which node_check tells. */
static void add_addresses(cJSON *root, const char *name, const char *list)
{
    cJSON *array = cJSON_AddArrayToObject(root, name);
    struct address_list found;
    char text[ADDRESS_TEXT_MAX], why[256];
    if (list[0] == '\0' || address_resolve(list, &found, why, sizeof(why)) != STRAIT_OK)
        return;
    for (uint32_t i = 0; i < found.count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateString(address_text(&found.found[i].address, text)));
}

static void add_options(const struct node_options *options, cJSON *root)
{
    cJSON *item = cJSON_AddObjectToObject(root, "options");
    cJSON_AddStringToObject(item, "socket", options->socket);
    cJSON_AddStringToObject(item, "transports", options->transports);
    cJSON_AddStringToObject(item, "gpu_wires", options->gpu_wires);
    cJSON_AddStringToObject(item, "codebook", options->codebook);
    cJSON_AddStringToObject(item, "credentials",
                            options->secret_file[0] != '\0'       ? "secret"
                            : options->tls_certificate[0] != '\0' ? "certificates"
                                                                  : "none");
    cJSON_AddBoolToObject(item, "encrypt_pages", options->encrypt_pages);
    cJSON_AddNumberToObject(item, "clients", options->clients);
    cJSON_AddNumberToObject(item, "arena_bytes", (double)options->arena_bytes);
}

/* ---- Host -------------------------------------------------------------------------------------------------------- */

/* null: no limit. */
static void add_limit(cJSON *limits, const char *name, rlim_t limit)
{
    if (limit == RLIM_INFINITY)
        cJSON_AddNullToObject(limits, name);
    else
        cJSON_AddNumberToObject(limits, name, (double)limit);
}

static void add_limits(cJSON *root)
{
    struct rlimit files = {0}, locked = {0};
    cJSON *limits = cJSON_AddObjectToObject(root, "limits");
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_MEMLOCK, &locked);
    add_limit(limits, "nofile", files.rlim_cur);
    add_limit(limits, "nofile_hard", files.rlim_max);
    add_limit(limits, "memlock", locked.rlim_cur);
    add_limit(limits, "memlock_hard", locked.rlim_max);
}

static void add_rdma(cJSON *root)
{
    char names[256] = "";
    size_t used = 0;
    DIR *folder = opendir(RDMA_DEVICES);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.' && used + strlen(entry->d_name) + 2 < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? "," : "", entry->d_name);
    if (folder != NULL)
        closedir(folder);
    cJSON_AddStringToObject(root, "rdma_devices", names);
    cJSON_AddBoolToObject(root, "rdma_active", transport_rdma_is_active(RDMA_DEVICES));
}

static void add_ucx(cJSON *root)
{
#if STRAIT_HAVE_UCX
    char version[32], components[512];
    cJSON *ucx = cJSON_AddObjectToObject(root, "ucx");
    cJSON_AddBoolToObject(ucx, "sound_over_tcp", ucx_is_sound_over_tcp(version, sizeof(version)));
    cJSON_AddStringToObject(ucx, "version", version);
    cJSON_AddBoolToObject(ucx, "libibverbs", ucx_can_load_rdma());
    ucx_components(components, sizeof(components));
    cJSON_AddStringToObject(ucx, "components", components);
#else
    cJSON_AddNullToObject(root, "ucx");
#endif
}

/* ---- Peers ------------------------------------------------------------------------------------------------------- */

static void add_peer(const struct node_options *options, const char *list, cJSON *array)
{
    struct probe probe;
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(array, item);
    probe_peer(options, list, &probe);
    cJSON_AddStringToObject(item, "peer", list);
    cJSON_AddStringToObject(item, "address", probe.address);
    cJSON_AddBoolToObject(item, "reached", probe.reached);
    cJSON_AddBoolToObject(item, "proved", probe.proved);
    cJSON_AddBoolToObject(item, "fits", probe.fits);
    cJSON_AddStringToObject(item, "why", probe.why);
    if (probe.reached)
        cJSON_AddNumberToObject(item, "connect_us", (double)probe.connect_us);
    if (!probe.proved)
        return;
    cJSON_AddNumberToObject(item, "hello_us", (double)probe.hello_us);
    cJSON_AddStringToObject(item, "version", probe.software);
    if (probe.clock_skew_us != HELLO_NO_CLOCK)
        cJSON_AddNumberToObject(item, "clock_skew_us", (double)probe.clock_skew_us);
    cJSON_AddNumberToObject(item, "protocol", probe.version);
    cJSON_AddNumberToObject(item, "protocol_min", probe.version_min);
}

bool node_examine(const struct node_options *options, const char *const *peers, unsigned peer_count, FILE *out)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "straitd examine");
    cJSON_AddNumberToObject(root, "schema_version", EXAMINE_SCHEMA_VERSION);
    cJSON_AddStringToObject(root, "version", strait_version());
    cJSON_AddNumberToObject(root, "protocol", PROTOCOL_VERSION);
    cJSON_AddNumberToObject(root, "protocol_min", PROTOCOL_VERSION_MIN);
    cJSON_AddStringToObject(root, "codec", strait_codec_name(strait_codec_get(NULL)));
    add_options(options, root);
    add_problems(options, cJSON_AddArrayToObject(root, "problems"));
    add_addresses(root, "listen", options->listen);
    add_addresses(root, "metrics", options->metrics);
    add_limits(root);
    add_rdma(root);
    add_ucx(root);
    cJSON *array = cJSON_AddArrayToObject(root, "peers");
    for (unsigned i = 0; i < peer_count; i++)
        add_peer(options, peers[i], array);
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (text != NULL)
        fprintf(out, "%s\n", text);
    cJSON_free(text);
    return text != NULL;
}
