/* Values of options: text to field and back. */
#include "daemon/equipment/option_table.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/equipment/address.h"

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

static void store_number(const struct option_row *row, struct node_options *options, uint64_t value)
{
    char *field = (char *)options + row->offset;
    uint32_t small = (uint32_t)value;
    if (row->kind == OPTION_BYTES)
        memcpy(field, &value, sizeof(value));
    else
        memcpy(field, &small, sizeof(small));
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
        store_number(row, options, number);
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

static bool text_is_good(const struct option_row *row, const char *text, char *why, size_t why_size)
{
    struct sockaddr_storage address;
    char host[ADDRESS_HOST_MAX];
    unsigned port = 0;
    if (row->kind == OPTION_ONE_OF && word_in(row->choices, text, strlen(text)) < 0)
        snprintf(why, why_size, "is none of: %s", row->choices);
    else if (row->kind == OPTION_LIST && !list_is_good(row->choices, text))
        snprintf(why, why_size, "is not a list, separated by commas, of some of: %s", row->choices);
    else if (row->kind == OPTION_NUMERIC && text[0] != 0 && !address_numeric(text, &address))
        snprintf(why, why_size, "is not a numeric host:port like 127.0.0.1:7350 or [::1]:7350");
    else if (row->kind == OPTION_ADDRESS && text[0] != 0 && !(address_split(text, host, &port) && port > 0))
        snprintf(why, why_size, "is not a host:port like node7:7350");
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

bool option_set(const struct option_row *row, struct node_options *options, const char *value, size_t size, char *why,
                size_t why_size)
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

void option_get(const struct option_row *row, const struct node_options *options, char value[OPTION_VALUE_MAX])
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
