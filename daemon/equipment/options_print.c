/* Prints the table of options for people. */
#include <string.h>

#include "daemon/equipment/option_table.h"

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

static const char *placeholder(const struct option_row *row)
{
    static const char *const names[] = {
        [OPTION_TEXT] = "TEXT",   [OPTION_NUMERIC] = "HOST:PORT", [OPTION_ADDRESS] = "HOST:PORT",
        [OPTION_COUNT] = "COUNT", [OPTION_BYTES] = "BYTES",       [OPTION_DURATION] = "TIME",
    };
    return row->choices != NULL ? row->choices : names[row->kind];
}

void options_help(FILE *out)
{
    char indent[HELP_INDENT + 1];
    memset(indent, ' ', HELP_INDENT);
    indent[HELP_INDENT] = 0;
    for (size_t i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->kind == OPTION_SWITCH)
            fprintf(out, "  --%s, --%s=no   (default: %s)\n", row->name, row->name, row->initial);
        else
            fprintf(out, "  --%s %s   (default: %s)\n", row->name, placeholder(row),
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

static void sample_heading(FILE *out, const char *section)
{
    int dashes = FILE_WIDTH - 8 - (int)strlen(section);
    fprintf(out, "\n# ---- %s ", section);
    for (int i = 0; i < dashes; i++)
        fputc('-', out);
    fputc('\n', out);
}

static void sample_row(FILE *out, const struct option_row *row)
{
    if (row->section != NULL)
        sample_heading(out, row->section);
    fputc('\n', out);
    wrap(out, "# ", "", row->help, FILE_WIDTH);
    if (row->choices != NULL)
        fprintf(out, "# Values: %s.\n", row->choices);
    if (row->danger != NULL)
        wrap(out, "# ", "Danger: ", row->danger, FILE_WIDTH);
    fprintf(out, "#%s =%s%s\n", row->name, row->initial[0] != 0 ? " " : "", row->initial);
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
        "# \"straitd --print-config\" shows what would apply.\n",
        out);
    for (size_t i = 0; i < option_row_count; i++)
        sample_row(out, &option_rows[i]);
}
