#include "bench/collective_kinds.h"

#include <string.h>

/* The first of these words that a name contains decides: a gradient of a weight is a gradient, the weight of a layer
 * that normalises its input is a weight. */
static const struct {
    const char *word;
    enum collective_data kind;
} words[] = {
    {"exp_avg_sq", COLLECTIVE_SQUARES},     {"exp_avg", COLLECTIVE_MOMENTS},   {"momentum", COLLECTIVE_MOMENTS},
    {"grad", COLLECTIVE_GRADIENTS},         {"weight", COLLECTIVE_WEIGHTS},    {"bias", COLLECTIVE_WEIGHTS},
    {"activation", COLLECTIVE_ACTIVATIONS}, {"input", COLLECTIVE_ACTIVATIONS}, {"output", COLLECTIVE_ACTIVATIONS},
    {"hidden", COLLECTIVE_ACTIVATIONS},
};

enum collective_data collective_kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(name, words[i].word) != NULL)
            return words[i].kind;
    return COLLECTIVE_OTHER;
}
