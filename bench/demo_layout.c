/* Layouts of the demo's pools: their words and regions, and the values of a model's cache put where they belong. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/codec.h"
#include "bench/collective.h"
#include "bench/demo.h"
#include "internal/bytes.h"
#include "internal/element.h"

#define TOKEN_VALUES (DEMO_HEADS * DEMO_HEAD_VALUES)
#define WINDOW_STEP  97u /* values between the beginnings of successive windows; odd, so that pages differ */

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static bool read_word(struct demo_layout *layout, const char *word)
{
    uint64_t tokens;

    if (strcmp(word, "nhd") == 0 || strcmp(word, "hnd") == 0)
        layout->hnd = word[0] == 'h';
    else if (strcmp(word, "packed") == 0)
        layout->packed = true;
    else if (strcmp(word, "cross-layer") == 0)
        layout->cross_layer = true;
    else if (strncmp(word, "tokens=", 7) == 0 && parse_number(word + 7, DEMO_TOKENS_MAX, &tokens) && tokens > 0)
        layout->tokens = (uint32_t)tokens;
    else
        return false;
    return true;
}

/* Each word at most once. */
static bool is_repeated(const char *text, const char *word)
{
    const size_t size = strcspn(word, ",=");
    const bool is_order = size == 3 && (memcmp(word, "nhd", 3) == 0 || memcmp(word, "hnd", 3) == 0);

    for (const char *other = text; other < word; other += strcspn(other, ",") + 1) {
        const bool other_order = strncmp(other, "nhd", 3) == 0 || strncmp(other, "hnd", 3) == 0;
        if (is_order ? other_order : strcspn(other, ",=") == size && memcmp(other, word, size) == 0)
            return true;
    }
    return false;
}

bool demo_layout_read(struct demo_layout *layout, const char *option, const char *text)
{
    *layout = (struct demo_layout){.tokens = DEMO_TOKENS};
    for (const char *at = text;; at++) {
        const size_t size = strcspn(at, ",");
        char word[16] = "";
        if (size < sizeof(word))
            memcpy(word, at, size);
        if (!read_word(layout, word)) {
            print_error(NULL, "%s: '%.*s' is none of nhd, hnd, packed, cross-layer, tokens=1 to tokens=%u", option,
                        (int)size, at, DEMO_TOKENS_MAX);
            return false;
        }
        if (is_repeated(text, at)) {
            print_error(NULL, "%s: '%s' repeats or contradicts a word before it", option, word);
            return false;
        }
        at += size;
        if (*at == '\0')
            return true;
    }
}

const char *demo_layout_text(const struct demo_layout *layout, char text[DEMO_LAYOUT_TEXT_BYTES])
{
    snprintf(text, DEMO_LAYOUT_TEXT_BYTES, "%s,tokens=%u%s%s", layout->hnd ? "hnd" : "nhd", layout->tokens,
             layout->packed ? ",packed" : "", layout->cross_layer ? ",cross-layer" : "");
    return text;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static int compare_spans(const void *left, const void *right)
{
    const struct strait_class a = (*(const struct span *const *)left)->class,
                              b = (*(const struct span *const *)right)->class;

    return a.layer != b.layer ? (a.layer > b.layer) - (a.layer < b.layer) : (a.role > b.role) - (a.role < b.role);
}

/* K and V of each layer, in order. */
static bool sort_spans(const struct spans *spans, const struct span *sorted[VALUE_REGIONS_MAX],
                       struct demo_model *model)
{
    bool paired = spans->count > 0 && spans->count <= VALUE_REGIONS_MAX && spans->count % 2 == 0;

    for (size_t i = 0; paired && i < spans->count; i++)
        sorted[i] = &spans->list[i];
    if (paired)
        qsort(sorted, spans->count, sizeof(*sorted), compare_spans);
    for (size_t i = 0; paired && i < spans->count; i++) {
        model->layer[i / 2] = sorted[i]->class.layer;
        paired = sorted[i]->class.role == (i % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V) &&
                 sorted[i]->class.layer == sorted[i & ~(size_t)1]->class.layer;
    }
    if (!paired)
        print_error(NULL, "not a sample for this: its BF16 tensors are not K and V of layers");
    model->layers = (uint32_t)(spans->count / 2);
    return paired;
}

/* The tensor in another type; bytes: INT8. */
static void convert(uint8_t *dst, const struct span *span, enum strait_element element)
{
    uint64_t seed = (uint64_t)span->class.layer * 2 + span->class.role;

    if (element == STRAIT_ELEMENT_FP8_E4M3 || element == STRAIT_ELEMENT_FP8_E5M2) {
        fp8_cast(dst, span->data, span->values, element);
        return;
    }
    for (uint64_t i = 0; i < span->values; i++) {
        const uint16_t narrow = load_le16(span->data + 2 * i);
        const uint32_t wide = (uint32_t)narrow << 16 | (uint32_t)(random_next(&seed) >> 48);
        float value;
        memcpy(&value, &wide, sizeof(value));
        if (element == STRAIT_ELEMENT_BF16)
            store_le16(dst + 2 * i, narrow);
        else if (element == STRAIT_ELEMENT_FP16)
            store_le16(dst + 2 * i, collective_fp16_of(fmaxf(-65504.0f, fminf(value, 65504.0f))));
        else if (element == STRAIT_ELEMENT_BYTES)
            dst[i] = (uint8_t)lrintf(fmaxf(-128.0f, fminf(16.0f * value, 127.0f)));
        else
            store_le32(dst + 4 * i, wide);
    }
}

/* Fills as much as DEMO_TOKENS tokens from a window of the tensor, taken as a ring. */
static void fill_window(uint8_t *dst, const uint8_t *tensor, uint64_t values, uint32_t width, uint32_t window)
{
    const uint64_t size = values * width, wanted = (uint64_t)DEMO_TOKENS * TOKEN_VALUES * width;
    uint64_t at = (uint64_t)window * WINDOW_STEP % values * width;

    for (uint64_t done = 0, part; done < wanted; done += part) {
        part = size - at < wanted - done ? size - at : wanted - done;
        memcpy(dst + done, tensor + at, part);
        at = 0;
    }
}

bool demo_model_init(struct demo_model *model, const struct spans *spans, enum strait_element element, uint32_t tokens)
{
    const uint32_t width = element_bytes(element);
    const uint64_t tensor_bytes = (uint64_t)tokens * TOKEN_VALUES * width;
    const struct span *sorted[VALUE_REGIONS_MAX];
    uint64_t longest = 0;

    *model = (struct demo_model){.element = element, .tokens = tokens};
    if (!sort_spans(spans, sorted, model))
        return false;
    for (size_t i = 0; i < spans->count; i++)
        longest = sorted[i]->values > longest ? sorted[i]->values : longest;
    uint8_t *tensor = malloc(longest * width);
    model->values = malloc(spans->count * tensor_bytes);
    for (size_t i = 0; tensor != NULL && model->values != NULL && i < spans->count; i++) {
        convert(tensor, sorted[i], element);
        for (uint32_t window = 0; window < tokens / DEMO_TOKENS; window++)
            fill_window(model->values + i * tensor_bytes + window * (tensor_bytes / tokens * DEMO_TOKENS), tensor,
                        sorted[i]->values, width, window);
    }
    if (tensor == NULL || model->values == NULL)
        print_error(NULL, "out of memory");
    const bool made = tensor != NULL && model->values != NULL;
    free(tensor);
    return made;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

bool demo_pool_init(struct demo_pool *pool, const struct demo_model *model, const struct demo_layout *layout,
                    uint64_t seed)
{
    const uint32_t per_layer = layout->packed ? 1 : 2;

    *pool = (struct demo_pool){.layout = *layout,
                               .element = model->element,
                               .regions = model->layers * per_layer,
                               .pages = (model->tokens + layout->tokens - 1) / layout->tokens,
                               .page_bytes = layout->tokens * TOKEN_VALUES * element_bytes(model->element) *
                                             (layout->packed ? 2 : 1)};
    memcpy(pool->layer, model->layer, sizeof(pool->layer));
    pool->ids = calloc(pool->pages, sizeof(pool->ids[0]));
    if (pool->ids == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    random_order(pool->ids, pool->pages, seed);
    return true;
}

uint64_t demo_pool_bytes(const struct demo_pool *pool)
{
    return (uint64_t)pool->regions * pool->pages * pool->page_bytes;
}

struct strait_class demo_pool_class(const struct demo_pool *pool, uint32_t region)
{
    if (pool->layout.packed)
        return (struct strait_class){.role = STRAIT_ROLE_KV, .layer = pool->layer[region]};
    return (struct strait_class){.role = region % 2 == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                 .layer = pool->layer[region / 2]};
}

size_t demo_pool_offset(const struct demo_pool *pool, uint32_t region, uint32_t page)
{
    const size_t number =
        pool->layout.cross_layer ? (size_t)page * pool->regions + region : (size_t)region * pool->pages + page;

    return number * pool->page_bytes;
}

void demo_pool_fill(const struct demo_pool *pool, void *base, const struct demo_model *model)
{
    const struct demo_layout *layout = &pool->layout;
    const size_t bytes = DEMO_HEAD_VALUES * element_bytes(model->element), room = layout->packed ? 2 * bytes : bytes;
    const uint8_t *src = model->values;

    for (uint32_t tensor = 0; tensor < 2 * model->layers; tensor++)
        for (uint32_t token = 0; token < model->tokens; token++)
            for (uint32_t head = 0; head < DEMO_HEADS; head++, src += bytes) {
                const uint32_t in_page = token % layout->tokens;
                uint8_t *page = (uint8_t *)base + demo_pool_offset(pool, layout->packed ? tensor / 2 : tensor,
                                                                   pool->ids[token / layout->tokens]);
                const size_t row =
                    layout->hnd ? (size_t)head * layout->tokens + in_page : (size_t)in_page * DEMO_HEADS + head;
                memcpy(page + row * room + (layout->packed && tensor % 2 == 1 ? bytes : 0), src, bytes);
            }
}

void demo_pool_regions(const struct demo_pool *pool, int fd, struct strait_pool_region *regions)
{
    for (uint32_t i = 0; i < pool->regions; i++) {
        const struct strait_class class = demo_pool_class(pool, i);
        regions[i] = (struct strait_pool_region){
            .handle = STRAIT_HANDLE_MEMFD,
            .device = -1,
            .fd = fd,
            .offset = demo_pool_offset(pool, i, 0),
            .page_stride = (uint64_t)pool->page_bytes * (pool->layout.cross_layer ? pool->regions : 1),
            .page_count = pool->pages,
            .rows = 1,
            .row_bytes = pool->page_bytes,
            .element = pool->element,
            .role = class.role,
            .layer = class.layer,
            .heads = DEMO_HEADS,
            .layout = pool->layout.hnd ? STRAIT_LAYOUT_HND : STRAIT_LAYOUT_NHD,
            .tokens = pool->layout.tokens,
            .heads_total = DEMO_HEADS,
        };
    }
}
