#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/address.h"
#include "daemon/base/credentials.h"
#include "daemon/base/log.h"
#include "daemon/base/option_table.h"
#include "daemon/base/options.h"
#include "internal/default_socket.h"

/* Values of options: text to field and back. */

static const struct unit {
    const char *text;
    uint64_t factor;
} byte_units[] = {{"T", (uint64_t)1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}, {"", 1}, {NULL, 0}},
  duration_units[] = {{"s", 1000}, {"ms", 1}, {NULL, 0}}, no_units[] = {{"", 1}, {NULL, 0}};

static const struct unit *units_of(enum option_kind kind)
{
    return kind == OPTION_BYTES ? byte_units : kind == OPTION_DURATION ? duration_units : no_units;
}

/* Prints the number in the largest unit that represents it exactly. */
static void print_number(char *text, size_t size, const struct unit *unit, uint64_t value)
{
    while (value % unit->factor != 0 || (value == 0 && unit[1].text != NULL))
        unit++;
    snprintf(text, size, "%" PRIu64 "%s", value / unit->factor, unit->text);
}

/* Parses digits into *value. Returns how many, or 0 when there are none or they overflow. */
static size_t parse_digits(const char *text, size_t size, uint64_t *value)
{
    size_t i = 0;
    *value = 0;
    for (; i < size && text[i] >= '0' && text[i] <= '9'; i++)
        if (__builtin_mul_overflow(*value, 10u, value) ||
            __builtin_add_overflow(*value, (uint64_t)(text[i] - '0'), value))
            return 0;
    return i;
}

static bool parse_number(const char *text, size_t size, const struct unit *unit, uint64_t *value)
{
    size_t digits = parse_digits(text, size, value);
    if (digits == 0)
        return false;
    for (; unit->text != NULL; unit++)
        if (strlen(unit->text) == size - digits && memcmp(unit->text, text + digits, size - digits) == 0)
            return !__builtin_mul_overflow(*value, unit->factor, value);
    return false;
}

static uint64_t load_number(const struct option_row *row, const struct node_options *options)
{
    const char *field = (const char *)options + row->offset;
    uint64_t value = 0;
    memcpy(&value, field, row->kind == OPTION_BYTES ? sizeof(uint64_t) : sizeof(uint32_t));
    return value;
}

static bool set_number(const struct option_row *row, struct node_options *options, const char *value, size_t size,
                       char *why, size_t why_size)
{
    static const char *const examples[] = {
        [OPTION_BYTES] = "a size like 65536, 64K, 4M or 2G",
        [OPTION_DURATION] = "a time with its unit, like 500ms or 3s",
        [OPTION_COUNT] = "a number",
    };
    char low[OPTION_VALUE_MAX], high[OPTION_VALUE_MAX];
    uint64_t number;
    if (parse_number(value, size, units_of(row->kind), &number) && number >= row->min && number <= row->max) {
        char *field = (char *)options + row->offset;
        uint32_t small = (uint32_t)number;
        if (row->kind == OPTION_BYTES)
            memcpy(field, &number, sizeof(number));
        else
            memcpy(field, &small, sizeof(small));
        return true;
    }
    print_number(low, sizeof(low), units_of(row->kind), row->min);
    print_number(high, sizeof(high), units_of(row->kind), row->max);
    snprintf(why, why_size, "is not %s from %s to %s", examples[row->kind], low, high);
    return false;
}

static bool set_switch(const struct option_row *row, struct node_options *options, const char *value, size_t size,
                       char *why, size_t why_size)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"}; /* odd indexes: true */
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == size && memcmp(words[i], value, size) == 0) {
            *(bool *)((char *)options + row->offset) = i % 2 != 0;
            return true;
        }
    snprintf(why, why_size, "is neither yes nor no");
    return false;
}

/* Place of a word in a list separated by commas; -1: not in it. */
static int word_in(const char *list, const char *word, size_t size)
{
    for (int place = 0;; place++) {
        size_t length = strcspn(list, ",");
        if (length == size && memcmp(list, word, size) == 0)
            return place;
        if (list[length] == 0)
            return -1;
        list += length + 1;
    }
}

static bool list_is_good(const char *choices, const char *list)
{
    for (unsigned seen = 0;;) {
        size_t length = strcspn(list, ",");
        int place = word_in(choices, list, length);
        if (place < 0 || (seen >> place & 1) != 0)
            return false;
        seen |= 1u << place;
        if (list[length] == 0)
            return true;
        list += length + 1;
    }
}

/* True: the value would not be read back unchanged from a file. */
static bool text_is_odd(const char *value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((uint8_t)value[i] < 0x20 || value[i] == 0x7f)
            return true;
    return size > 0 && (value[0] == ' ' || value[size - 1] == ' ');
}

/* What an address stands for is looked up by options_check. */
static bool addresses_are_good(const char *list)
{
    char item[ADDRESS_TEXT_MAX], host[ADDRESS_HOST_MAX];
    unsigned port, count = 0;
    while (list != NULL) {
        list = address_next(list, item);
        if (++count > ADDRESS_LIST_MAX || !address_split(item, host, &port))
            return false;
    }
    return true;
}

static bool text_is_good(const struct option_row *row, const char *text, char *why, size_t why_size)
{
    if (row->kind == OPTION_ONE_OF && word_in(row->choices, text, strlen(text)) < 0)
        snprintf(why, why_size, "is none of: %s", row->choices);
    else if (row->kind == OPTION_LIST && !list_is_good(row->choices, text))
        snprintf(why, why_size, "is not a list, separated by commas, of some of: %s", row->choices);
    else if (row->kind == OPTION_LISTEN && text[0] != 0 && !addresses_are_good(text))
        snprintf(why, why_size,
                 "is not host:port like 127.0.0.1:7350, [::1]:7350, eth0:7350 or *:7350, or up to %u of "
                 "them, separated by commas",
                 ADDRESS_LIST_MAX);
    else if (row->kind == OPTION_ADVERTISE && text[0] != 0 && !address_list_ok(text))
        snprintf(why, why_size,
                 "is not host:port like node7:7350 or [2001:db8::7]:7350, or up to %u of them, separated "
                 "by commas",
                 ADDRESS_LIST_MAX);
    else
        return true;
    return false;
}

static bool set_text(const struct option_row *row, struct node_options *options, const char *value, size_t size,
                     char *why, size_t why_size)
{
    char text[OPTION_TEXT_MAX] = {0};
    if (size > row->max) {
        snprintf(why, why_size, "is longer than %" PRIu64 " bytes", row->max);
        return false;
    }
    if (text_is_odd(value, size)) {
        snprintf(why, why_size, "has control characters, or blanks at an end");
        return false;
    }
    memcpy(text, value, size);
    if (!text_is_good(row, text, why, why_size))
        return false;
    char *field = (char *)options + row->offset;
    memset(field, 0, row->kind == OPTION_ONE_OF ? row->max + 1 : OPTION_TEXT_MAX);
    memcpy(field, text, size);
    return true;
}

bool option_set(const struct option_row *row, void *options, const char *value, size_t size, char *why, size_t why_size)
{
    switch (row->kind) {
    case OPTION_SWITCH:
        return set_switch(row, options, value, size, why, why_size);
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_DURATION:
        return set_number(row, options, value, size, why, why_size);
    default:
        return set_text(row, options, value, size, why, why_size);
    }
}

/* Writes the option's value as text that option_set reads back to the same value. */
static void option_get(const struct option_row *row, const struct node_options *options, char value[OPTION_VALUE_MAX])
{
    const char *field = (const char *)options + row->offset;
    switch (row->kind) {
    case OPTION_SWITCH:
        snprintf(value, OPTION_VALUE_MAX, "%s", *(const bool *)field ? "yes" : "no");
        break;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_DURATION:
        print_number(value, OPTION_VALUE_MAX, units_of(row->kind), load_number(row, options));
        break;
    default:
        snprintf(value, OPTION_VALUE_MAX, "%s", field);
    }
}

/* ---- Reloading --------------------------------------------------------------------------------------------------- */

size_t options_differ(const struct node_options *a, const struct node_options *b, bool reloads, char *names,
                      size_t names_size)
{
    char one[OPTION_VALUE_MAX], other[OPTION_VALUE_MAX];
    size_t count = 0, used = 0;
    names[0] = 0;
    for (const struct option_row *row = option_rows; row < option_rows + option_row_count; row++) {
        option_get(row, a, one);
        option_get(row, b, other);
        if (row->reloads != reloads || strcmp(one, other) == 0)
            continue;
        if (used < names_size)
            used += (size_t)snprintf(names + used, names_size - used, "%s%s", count > 0 ? ", " : "", row->name);
        count++;
    }
    return count;
}

void options_reload(struct node_options *options, const struct node_options *fresh)
{
    char value[OPTION_VALUE_MAX], why[OPTION_TEXT_MAX];
    const uint32_t peer_timeout_ms = options->peer_timeout_ms;
    for (const struct option_row *row = option_rows; row < option_rows + option_row_count; row++) {
        if (!row->reloads)
            continue;
        option_get(row, fresh, value);
        option_set(row, options, value, strlen(value), why, sizeof(why));
    }
    if (options->peer_timeout_ms != peer_timeout_ms) {
        options->heartbeat_ms = options->connect_ms = 0; /* follow from it */
        options_complete(options);
    }
}

/* Prints the table of options for people. */

#define HELP_INDENT 8
#define HELP_WIDTH  100
#define FILE_WIDTH  110

/* Prints the words of a text in lines of about `width` columns, each after `prefix`; `lead` stands before the first
 * word. */
static void wrap(FILE *out, const char *prefix, const char *lead, const char *text, size_t width)
{
    size_t column = (size_t)fprintf(out, "%s%s", prefix, lead);
    bool begun = false;
    while (*text != 0) {
        size_t word = strcspn(text, " ");
        if (begun && column + 1 + word > width) {
            column = (size_t)fprintf(out, "\n%s", prefix) - 1;
            begun = false;
        }
        column += (size_t)fprintf(out, "%s%.*s", begun ? " " : "", (int)word, text);
        begun = true;
        text += word + (text[word] == ' ');
    }
    fputc('\n', out);
}

void options_help(FILE *out)
{
    static const char *const names[] = {
        [OPTION_TEXT] = "TEXT",   [OPTION_LISTEN] = "HOST:PORT,...", [OPTION_ADVERTISE] = "HOST:PORT,...",
        [OPTION_COUNT] = "COUNT", [OPTION_BYTES] = "BYTES",          [OPTION_DURATION] = "TIME",
    };
    char indent[HELP_INDENT + 1];
    memset(indent, ' ', HELP_INDENT);
    indent[HELP_INDENT] = 0;
    for (size_t i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->kind == OPTION_SWITCH)
            fprintf(out, "  --%s, --%s=no   (default: %s)\n", row->name, row->name, row->initial);
        else
            fprintf(out, "  --%s %s   (default: %s)\n", row->name,
                    row->choices != NULL ? row->choices : names[row->kind],
                    row->initial[0] != 0 ? row->initial : "none");
        wrap(out, indent, "", row->help, HELP_WIDTH);
    }
}

void options_print(const struct node_options *options, FILE *out)
{
    char value[OPTION_VALUE_MAX];
    for (size_t i = 0; i < option_row_count; i++) {
        option_get(&option_rows[i], options, value);
        fprintf(out, "%s =%s%s\n", option_rows[i].name, value[0] != 0 ? " " : "", value);
    }
}

void options_sample(FILE *out)
{
    fputs(
        "# straitd.conf: options of straitd, each with its default. Remove the # in front of a name to change it.\n"
        "#\n"
        "# A line is \"name = value\"; the value goes on to the end of the line. Sizes are bytes and may end in K, "
        "M, G or\n"
        "# T (powers of 1024); times end in ms or s. The environment (STRAITD_CHUNK_BYTES=1M) overrides this file, "
        "and\n"
        "# flags (--chunk-bytes 1M) override both. A name or value that straitd does not know stops it from starting;\n"
        "# \"straitd --print-config\" shows what would apply, \"straitd --check-config\" tries it. SIGHUP reads the "
        "file "
        "again.\n",
        out);
    for (const struct option_row *row = option_rows; row < option_rows + option_row_count; row++) {
        if (row->section != NULL) {
            fprintf(out, "\n# ---- %s ", row->section);
            for (int dashes = FILE_WIDTH - 8 - (int)strlen(row->section); dashes > 0; dashes--)
                fputc('-', out);
            fputc('\n', out);
        }
        fputc('\n', out);
        wrap(out, "# ", "", row->help, FILE_WIDTH);
        if (row->choices != NULL)
            fprintf(out, "# Values: %s.\n", row->choices);
        if (row->reloads)
            fputs("# SIGHUP applies a new value.\n", out);
        if (row->danger != NULL)
            wrap(out, "# ", "Danger: ", row->danger, FILE_WIDTH);
        fprintf(out, "#%s =%s%s\n", row->name, row->initial[0] != 0 ? " " : "", row->initial);
    }
}

#define FILE_BYTES_MAX     ((size_t)1 << 20)
#define CHUNK_GRANULARITY  4096u
#define ENVIRONMENT_PREFIX "STRAITD_"

#define CHUNK_TARGET    ((uint64_t)2 << 20)
#define GPU_CHUNK_BYTES ((uint64_t)16 << 20)
#define GRANT_MS        100u
#define REQUESTS_MAX    4096u

/* ---- Defaults ---------------------------------------------------------------------------------------------------- */

void options_default(struct node_options *options)
{
    char path[SOCKET_PATH_MAX + 1], why[OPTION_TEXT_MAX];
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        option_set(row, options, row->initial, strlen(row->initial), why, sizeof(why));
    }
    /* A user's own daemon cannot write to /run/strait. */
    if (socket_of_user(path))
        option_set(option_find("socket", 6), options, path, strlen(path), why, sizeof(why));
}

static void set_unset(uint32_t *value, uint32_t usual)
{
    if (*value == 0)
        *value = usual;
}

void options_complete(struct node_options *options)
{
    const uint64_t half = options->arena_bytes / 2, slot = options->chunk_bytes;
    if (options->send_bytes == 0)
        options->send_bytes = half > slot ? half : slot;
    if (options->chunk_target == 0)
        options->chunk_target = CHUNK_TARGET < slot ? CHUNK_TARGET : slot;
    if (options->gpu_chunk_bytes == 0)
        options->gpu_chunk_bytes = GPU_CHUNK_BYTES;
    set_unset(&options->heartbeat_ms, options->peer_timeout_ms / 3);
    set_unset(&options->connect_ms, options->peer_timeout_ms);
    set_unset(&options->grant_ms, GRANT_MS);
    set_unset(&options->clients_per_user, options->clients - options->clients / 4);
    set_unset(&options->transfers, REQUESTS_MAX);
    set_unset(&options->parked, REQUESTS_MAX);
}

/* ---- One option from anywhere ------------------------------------------------------------------------------------ */

static enum strait_status unknown(const char *where, const char *name, size_t size, struct option_error *error)
{
    char quoted[128];
    const char *now = option_gone(name, size);
    if (now != NULL)
        snprintf(error->text, sizeof(error->text), "%s: option %.*s %s", where, (int)size, name, now);
    else
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

static enum strait_status take_line(struct span line, const char *where, option_assign take, void *arg,
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
    return take(arg, where, name.data, name.size, value.data, value.size, error);
}

enum strait_status option_lines(const char *text, size_t size, const char *where, option_assign take, void *arg,
                                struct option_error *error)
{
    enum strait_status status = STRAIT_OK;
    char place[OPTION_TEXT_MAX];
    for (unsigned number = 1; size > 0 && status == STRAIT_OK; number++) {
        const char *newline = memchr(text, '\n', size);
        size_t length = newline != NULL ? (size_t)(newline - text) : size;
        snprintf(place, sizeof(place), "%.200s:%u", where, number);
        status = take_line((struct span){text, length}, place, take, arg, error);
        length += newline != NULL;
        text += length;
        size -= length;
    }
    return status;
}

static enum strait_status assign_option(void *options, const char *where, const char *name, size_t name_size,
                                        const char *value, size_t value_size, struct option_error *error)
{
    return assign(options, where, name, name_size, value, value_size, error);
}

enum strait_status options_text(struct node_options *options, const char *text, size_t size, const char *where,
                                struct option_error *error)
{
    struct node_options changed = *options;
    enum strait_status status = option_lines(text, size, where, assign_option, &changed, error);
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

static enum strait_status read_lines(FILE *file, const char *path, char *buffer, option_assign take, void *arg,
                                     struct option_error *error)
{
    size_t size = fread(buffer, 1, FILE_BYTES_MAX + 1, file);
    if (ferror(file))
        return file_error(path, strerror(errno), STRAIT_ERR_IO, error);
    if (size > FILE_BYTES_MAX)
        return file_error(path, "larger than a file of options can be", STRAIT_ERR_INVALID, error);
    return option_lines(buffer, size, path, take, arg, error);
}

enum strait_status option_file_lines(const char *path, option_assign take, void *arg, struct option_error *error)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return file_error(path, strerror(errno), STRAIT_ERR_IO, error);
    char *buffer = malloc(FILE_BYTES_MAX + 1);
    enum strait_status status = buffer != NULL ? read_lines(file, path, buffer, take, arg, error)
                                               : file_error(path, "no memory", STRAIT_ERR_NO_MEMORY, error);
    free(buffer);
    fclose(file);
    return status;
}

enum strait_status options_file(struct node_options *options, const char *path, struct option_error *error)
{
    struct node_options changed = *options;
    enum strait_status status = option_file_lines(path, assign_option, &changed, error);
    if (status == STRAIT_OK)
        *options = changed;
    return status;
}

/* ---- Environment ------------------------------------------------------------------------------------------------- */

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
    /* STRAITD_CONFIG is the program's own, the others Kubernetes sets in every pod beside a service called straitd. */
    if (strncmp(rest, "CONFIG=", 7) == 0 || strncmp(rest, "SERVICE_", 8) == 0 || strncmp(rest, "PORT=", 5) == 0 ||
        strncmp(rest, "PORT_", 5) == 0 || rest[size] == 0)
        return STRAIT_OK;
    size_t name_size = variable_to_name(name, sizeof(name), rest, size);
    log_quote(where, sizeof(where), variable, strcspn(variable, "="));
    if (option_find(name, name_size) == NULL && option_gone(name, name_size) == NULL)
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

/* `before`: the flag or value in front of it. After a switch, the argument was probably meant as its value. */
static enum strait_status not_a_flag(const char *flag, const char *before, struct option_error *error)
{
    char what[128], quoted[64];
    const struct option_row *row = strncmp(before, "--", 2) == 0 ? option_find(before + 2, strlen(before + 2)) : NULL;
    if (row == NULL || row->kind != OPTION_SWITCH)
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
    if (options->gpu_arena_bytes != 0 && options->gpu_arena_bytes < GPU_CHUNK_BYTES)
        REFUSE("gpu-arena-bytes is less than 16M: there would be no slot");
    return STRAIT_OK;
}

/* Names and interfaces count as the addresses that they stand for. */
static enum strait_status check_listen(const struct node_options *options, const char *name, const char *text,
                                       struct address_list *list, struct option_error *error)
{
    char why[256], one[ADDRESS_TEXT_MAX];
    list->count = 0;
    if (text[0] == 0)
        return STRAIT_OK;
    if (address_resolve(text, list, why, sizeof(why)) != STRAIT_OK)
        REFUSE("%s: %s", name, why);
    const bool open = options->secret_file[0] == 0 && options->tls_certificate[0] == 0 && !options->insecure_no_auth;
    for (uint32_t i = 0; i < list->count; i++)
        if (open && !address_is_loopback(&list->found[i].address))
            REFUSE("%s: %s is not a loopback address: it needs secret-file or tls-certificate (or insecure-no-auth)",
                   name, address_text(&list->found[i].address, one));
    return STRAIT_OK;
}

static enum strait_status check_addresses(const struct node_options *options, struct option_error *error)
{
    struct address_list list;
    char text[OPTION_TEXT_MAX], why[256];
    enum strait_status status = check_listen(options, "metrics", options->metrics, &list, error);
    if (status == STRAIT_OK)
        status = check_listen(options, "listen", options->listen, &list, error);
    if (status != STRAIT_OK)
        return status;
    if (address_advertise(options->advertise, &list, text, sizeof(text), why, sizeof(why)) != STRAIT_OK)
        REFUSE("%s: %s", options->advertise[0] != 0 ? "advertise" : "listen", why);
    return STRAIT_OK;
}

enum strait_status options_credentials(const struct node_options *options, struct credentials **credentials, char *why,
                                       size_t why_size)
{
    const struct credentials_files files = {.secret = options->secret_file,
                                            .certificate = options->tls_certificate,
                                            .key = options->tls_key,
                                            .ca = options->tls_ca,
                                            .name = options->tls_name};
    return credentials_read(&files, credentials, why, why_size);
}

static enum strait_status check_credentials(const struct node_options *options, struct option_error *error)
{
    struct credentials *credentials;
    char why[400];
    enum strait_status status = options_credentials(options, &credentials, why, sizeof(why));
    bool any = credentials != NULL;
    credentials_release(credentials);
    if (status == STRAIT_OK && !any && options->encrypt_pages)
        REFUSE("encrypt-pages needs secret-file or tls-certificate");
    if (status == STRAIT_OK && any && options->insecure_no_auth)
        REFUSE("insecure-no-auth contradicts secret-file and tls-certificate: set one of them");
    if (status != STRAIT_OK)
        snprintf(error->text, sizeof(error->text), "%s", why);
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
        status = check_credentials(options, error);
    if (status == STRAIT_OK)
        status = check_addresses(options, error);
    if (status == STRAIT_OK)
        status = check_wires(options, error);
    return status;
}
