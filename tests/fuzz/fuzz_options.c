/* Foreign bytes as a file of options: what is read is printed and read again. */
#include <string.h>

#include "daemon/base/options.h"
#include "tests/fuzz/fuzz.h"

static void check_print(const struct node_options *options)
{
    struct node_options back;
    struct option_error error;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    require(out != NULL);
    options_print(options, out);
    require(fclose(out) == 0);
    options_default(&back);
    require(options_text(&back, text, size, "printed", &error) == STRAIT_OK);
    require(memcmp(options, &back, sizeof(back)) == 0);
    free(text);
}

/* The same bytes as variables or flags, cut at newlines: never worse than an error. */
static void parse_words(const uint8_t *data, size_t size)
{
    char *words[18] = {(char *)"straitd"}, *copy = malloc(size + 1);
    struct node_options options;
    struct option_error error;
    int count = 1;
    require(copy != NULL);
    memcpy(copy, data, size);
    copy[size] = 0;
    for (char *word = strtok(copy, "\n"); word != NULL && count < 17; word = strtok(NULL, "\n"))
        words[count++] = word;
    options_default(&options);
    options_environment(&options, words, &error);
    options_flags(&options, count, words, &error);
    check_print(&options);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct node_options before, options;
    struct option_error error = {{0}};
    options_default(&before);
    options_default(&options);
    if (options_text(&options, (const char *)data, size, "input", &error) == STRAIT_OK) {
        check_print(&options);
    } else {
        require(strncmp(error.text, "input:", 6) == 0);
        require(memcmp(&before, &options, sizeof(options)) == 0);
    }
    parse_words(data, size);
    return 0;
}
