#include "daemon/equipment/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/equipment/address.h"
#include "daemon/equipment/auth.h"
#include "daemon/equipment/log.h"
#include "daemon/equipment/option_table.h"
#include "internal/default_socket.h"

#define FILE_BYTES_MAX     ((size_t)1 << 20)
#define CHUNK_GRANULARITY  4096u
#define ENVIRONMENT_PREFIX "STRAITD_"

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

/* A user's own daemon cannot write to /run/strait. */
static void default_socket(struct node_options *options)
{
    char path[SOCKET_PATH_MAX + 1], why[OPTION_TEXT_MAX];
    if (socket_of_user(path))
        option_set(option_find("socket", 6), options, path, strlen(path), why, sizeof(why));
}

void options_default(struct node_options *options)
{
    char why[OPTION_TEXT_MAX];
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        option_set(row, options, row->initial, strlen(row->initial), why, sizeof(why));
    }
    default_socket(options);
}

/* ---- One option from anywhere ------------------------------------------------------------------------------------ */

static enum strait_status unknown(const char *where, const char *name, size_t size, struct option_error *error)
{
    char quoted[128];
    snprintf(error->text, sizeof(error->text), "%s: no option is called %s", where,
             log_quote(quoted, sizeof(quoted), name, size));
    return STRAIT_ERR_INVALID;
}

/* where NULL: a flag. */
static enum strait_status assign(struct node_options *options, const char *where, const char *name, size_t name_size,
                                 const char *value, size_t value_size, struct option_error *error)
{
    const struct option_row *row = option_find(name, name_size);
    char why[160], quoted[128];
    if (row == NULL)
        return unknown(where, name, name_size, error);
    if (option_set(row, options, value, value_size, why, sizeof(why)))
        return STRAIT_OK;
    log_quote(quoted, sizeof(quoted), value, value_size);
    if (where == NULL)
        snprintf(error->text, sizeof(error->text), "--%s: %s %s", row->name, quoted, why);
    else
        snprintf(error->text, sizeof(error->text), "%s: %s: %s %s", where, row->name, quoted, why);
    return STRAIT_ERR_INVALID;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

struct span {
    const char *data;
    size_t size;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct span trim(struct span text)
{
    while (text.size > 0 && is_blank(text.data[0])) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && is_blank(text.data[text.size - 1]))
        text.size--;
    return text;
}

static enum strait_status assign_line(struct node_options *options, struct span line, const char *where,
                                      struct option_error *error)
{
    line = trim(line);
    if (line.size == 0 || line.data[0] == '#')
        return STRAIT_OK;
    const char *equals = memchr(line.data, '=', line.size);
    if (equals == NULL) {
        snprintf(error->text, sizeof(error->text), "%s: the line is not \"name = value\"", where);
        return STRAIT_ERR_INVALID;
    }
    size_t before = (size_t)(equals - line.data);
    struct span name = trim((struct span){line.data, before});
    struct span value = trim((struct span){equals + 1, line.size - before - 1});
    return assign(options, where, name.data, name.size, value.data, value.size, error);
}

enum strait_status options_text(struct node_options *options, const char *text, size_t size, const char *where,
                                struct option_error *error)
{
    struct node_options changed = *options;
    enum strait_status status = STRAIT_OK;
    char place[OPTION_TEXT_MAX];
    for (unsigned number = 1; size > 0 && status == STRAIT_OK; number++) {
        const char *newline = memchr(text, '\n', size);
        size_t length = newline != NULL ? (size_t)(newline - text) : size;
        snprintf(place, sizeof(place), "%.200s:%u", where, number);
        status = assign_line(&changed, (struct span){text, length}, place, error);
        length += newline != NULL;
        text += length;
        size -= length;
    }
    if (status == STRAIT_OK)
        *options = changed;
    return status;
}

static enum strait_status file_error(const char *path, const char *what, enum strait_status status,
                                     struct option_error *error)
{
    snprintf(error->text, sizeof(error->text), "%.300s: %s", path, what);
    return status;
}

static enum strait_status read_options(struct node_options *options, FILE *file, const char *path, char *buffer,
                                       struct option_error *error)
{
    size_t size = fread(buffer, 1, FILE_BYTES_MAX + 1, file);
    if (ferror(file))
        return file_error(path, strerror(errno), STRAIT_ERR_IO, error);
    if (size > FILE_BYTES_MAX)
        return file_error(path, "larger than a file of options can be", STRAIT_ERR_INVALID, error);
    return options_text(options, buffer, size, path, error);
}

enum strait_status options_file(struct node_options *options, const char *path, struct option_error *error)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return file_error(path, strerror(errno), STRAIT_ERR_IO, error);
    char *buffer = malloc(FILE_BYTES_MAX + 1);
    enum strait_status status = buffer != NULL ? read_options(options, file, path, buffer, error)
                                               : file_error(path, "no memory", STRAIT_ERR_NO_MEMORY, error);
    free(buffer);
    fclose(file);
    return status;
}

/* ---- Environment ------------------------------------------------------------------------------------------------- */

/* The program's own STRAITD_CONFIG, and what Kubernetes sets in every pod beside a service that is called straitd. */
static bool is_no_option(const char *rest)
{
    return strncmp(rest, "CONFIG=", 7) == 0 || strncmp(rest, "SERVICE_", 8) == 0 || strncmp(rest, "PORT=", 5) == 0 ||
           strncmp(rest, "PORT_", 5) == 0;
}

/* CHUNK_BYTES to chunk-bytes. Lower case does not name an option. */
static size_t variable_to_name(char *name, size_t capacity, const char *variable, size_t size)
{
    size_t i = 0;
    for (; i < size && i < capacity; i++)
        name[i] = variable[i] == '_'                         ? '-'
                  : variable[i] >= 'A' && variable[i] <= 'Z' ? (char)(variable[i] - 'A' + 'a')
                                                             : '?';
    return i;
}

static enum strait_status assign_variable(struct node_options *options, const char *variable,
                                          struct option_error *error)
{
    const char *rest = variable + strlen(ENVIRONMENT_PREFIX);
    size_t size = strcspn(rest, "=");
    char name[64], where[128];
    if (is_no_option(rest) || rest[size] == 0)
        return STRAIT_OK;
    size_t name_size = variable_to_name(name, sizeof(name), rest, size);
    log_quote(where, sizeof(where), variable, strcspn(variable, "="));
    if (option_find(name, name_size) == NULL)
        return unknown("environment", variable, strcspn(variable, "="), error);
    return assign(options, where, name, name_size, rest + size + 1, strlen(rest + size + 1), error);
}

enum strait_status options_environment(struct node_options *options, char *const *environment,
                                       struct option_error *error)
{
    struct node_options changed = *options;
    for (; *environment != NULL; environment++) {
        if (strncmp(*environment, ENVIRONMENT_PREFIX, strlen(ENVIRONMENT_PREFIX)) != 0)
            continue;
        enum strait_status status = assign_variable(&changed, *environment, error);
        if (status != STRAIT_OK)
            return status;
    }
    *options = changed;
    return STRAIT_OK;
}

/* ---- Flags ------------------------------------------------------------------------------------------------------- */

static enum strait_status flag_error(const char *flag, const char *what, struct option_error *error)
{
    char quoted[160];
    log_quote(quoted, sizeof(quoted), flag, strlen(flag));
    snprintf(error->text, sizeof(error->text), "%s: %s", quoted, what);
    return STRAIT_ERR_INVALID;
}

static bool is_bare_switch(const char *flag)
{
    const struct option_row *row = strncmp(flag, "--", 2) == 0 ? option_find(flag + 2, strlen(flag + 2)) : NULL;
    return row != NULL && row->kind == OPTION_SWITCH;
}

/* `before`: the flag or value in front of it. After a switch, the argument was probably meant as its value. */
static enum strait_status not_a_flag(const char *flag, const char *before, struct option_error *error)
{
    char what[128], quoted[64];
    if (!is_bare_switch(before))
        return flag_error(flag, "is not an option", error);
    snprintf(what, sizeof(what), "is not an option; write %s=%s", before,
             log_quote(quoted, sizeof(quoted), flag, strlen(flag)));
    return flag_error(flag, what, error);
}

/* `next`: the argument behind the flag, or NULL; *used: it was taken as the value. */
static enum strait_status assign_flag(struct node_options *options, const char *flag, const char *next, bool *used,
                                      struct option_error *error)
{
    const char *name = flag + 2, *value;
    size_t size = strcspn(name, "=");
    const struct option_row *row = option_find(name, size);
    *used = false;
    if (row == NULL)
        return unknown("command line", name, size, error);
    if (name[size] == '=') {
        value = name + size + 1;
    } else if (row->kind == OPTION_SWITCH) {
        value = "yes";
    } else {
        if (next == NULL)
            return flag_error(flag, "needs a value", error);
        value = next;
        *used = true;
    }
    return assign(options, NULL, name, size, value, strlen(value), error);
}

enum strait_status options_flags(struct node_options *options, int argc, char *const *argv, struct option_error *error)
{
    struct node_options changed = *options;
    bool used = false;
    for (int i = 1; i < argc; i += 1 + used) {
        if (strncmp(argv[i], "--", 2) != 0)
            return not_a_flag(argv[i], i > 1 ? argv[i - 1] : "", error);
        enum strait_status status = assign_flag(&changed, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used, error);
        if (status != STRAIT_OK)
            return status;
    }
    *options = changed;
    return STRAIT_OK;
}

/* ---- Checks across options --------------------------------------------------------------------------------------- */

#define REFUSE(...)                                              \
    do {                                                         \
        snprintf(error->text, sizeof(error->text), __VA_ARGS__); \
        return STRAIT_ERR_INVALID;                               \
    } while (0)

static enum strait_status check_sizes(const struct node_options *options, struct option_error *error)
{
    if (options->chunk_bytes % CHUNK_GRANULARITY != 0)
        REFUSE("chunk-bytes is not a multiple of 4K");
    if (options->arena_bytes < options->chunk_bytes)
        REFUSE("arena-bytes is less than chunk-bytes: there would be no slot");
    if (options->send_bytes < options->chunk_bytes)
        REFUSE("send-bytes is less than chunk-bytes: there would be no slot");
    if (options->gpu_chunk_bytes % CHUNK_GRANULARITY != 0)
        REFUSE("gpu-chunk-bytes is not a multiple of 4K");
    if (options->gpu_arena_bytes != 0 && options->gpu_arena_bytes < options->gpu_chunk_bytes)
        REFUSE("gpu-arena-bytes is less than gpu-chunk-bytes: there would be no slot");
    if (options->peer_timeout_ms / 2 < options->heartbeat_ms)
        REFUSE("peer-timeout is less than two heartbeats: living peers would count as down");
    return STRAIT_OK;
}

static enum strait_status check_address(const struct node_options *options, const char *name, const char *text,
                                        struct option_error *error)
{
    struct sockaddr_storage address;
    if (text[0] == 0)
        return STRAIT_OK;
    if (!address_numeric(text, &address))
        REFUSE("%s: %s is not a numeric host:port", name, text);
    if (!address_is_loopback(&address) && options->secret_file[0] == 0 && !options->insecure_no_auth)
        REFUSE("%s: %s is not a loopback address: it needs secret-file (or insecure-no-auth)", name, text);
    return STRAIT_OK;
}

static enum strait_status check_advertised(const struct node_options *options, struct option_error *error)
{
    struct sockaddr_storage address;
    if (options->listen[0] == 0 || options->advertise[0] != 0 || !address_numeric(options->listen, &address))
        return STRAIT_OK;
    if (address_is_wildcard(&address))
        REFUSE("listen: peers cannot dial %s: set advertise to the host:port where they reach this node",
               options->listen);
    return STRAIT_OK;
}

static enum strait_status check_secret(const struct node_options *options, struct option_error *error)
{
    struct secret secret;
    char why[400];
    if (options->secret_file[0] == 0)
        return STRAIT_OK;
    if (options->insecure_no_auth)
        REFUSE("secret-file and insecure-no-auth contradict each other: set one of them");
    enum strait_status status = auth_secret_read(options->secret_file, &secret, why, sizeof(why));
    auth_secret_wipe(&secret);
    if (status != STRAIT_OK)
        snprintf(error->text, sizeof(error->text), "secret-file: %s", why);
    return status;
}

static enum strait_status check_wires(const struct node_options *options, struct option_error *error)
{
    if (strstr(options->gpu_wires, "auto") == NULL || strcmp(options->gpu_wires, "auto") == 0)
        return STRAIT_OK;
    snprintf(error->text, sizeof(error->text), "gpu-wires = %s: auto stands alone", options->gpu_wires);
    return STRAIT_ERR_INVALID;
}

enum strait_status options_check(const struct node_options *options, struct option_error *error)
{
    enum strait_status status = check_sizes(options, error);
    if (status == STRAIT_OK)
        status = check_secret(options, error);
    if (status == STRAIT_OK)
        status = check_address(options, "listen", options->listen, error);
    if (status == STRAIT_OK)
        status = check_address(options, "metrics", options->metrics, error);
    if (status == STRAIT_OK)
        status = check_wires(options, error);
    if (status == STRAIT_OK)
        status = check_advertised(options, error);
    return status;
}
