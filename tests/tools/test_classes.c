#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/run_suite.h"
#include "tools/input.h"

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

enum { OTHER = STRAIT_ROLE_OTHER, K = STRAIT_ROLE_K, V = STRAIT_ROLE_V };

static struct class_rules *rules; /* the defaults, fresh for every test */

static void setup(void)
{
    rules = class_rules_create();
    ck_assert_ptr_nonnull(rules);
}

static void teardown(void)
{
    class_rules_destroy(rules);
}

static void assert_class(const char *name, int role, int32_t layer)
{
    struct strait_class class = class_of(rules, name);
    ck_assert_msg((int)class.role == role && class.layer == layer, "'%.80s' is role %d layer %d, not role %d layer %d",
                  name, (int)class.role, class.layer, role, layer);
}

static void add_rule(const char *rule)
{
    const char *why = "unset";
    ck_assert_int_eq(STRAIT_OK, class_rules_add(rules, rule, &why));
    ck_assert_ptr_null(why);
}

/* ---- Defaults -------------------------------------------------------------------------------------------------- */

static const struct name_case {
    const char *name;
    int role;
    int32_t layer;
} names[] = {
    /* cached K and V */
    {"layers.0.k", K, 0},
    {"layers.11.v", V, 11},
    {"layers.7.key", K, 7},
    {"layers.7.value", V, 7},
    {"layers.7.keys", K, 7},
    {"layers.7.values", V, 7},
    {"layers.3.k_cache", K, 3},
    {"layers.3.v_cache", V, 3},
    {"layers.3.self_attn.key_cache", K, 3},
    {"layers.3.attn.past_value", V, 3},
    {"layers.3.k_cache.0", K, 3},
    {"model.layers.31.self_attn.attn.v_cache", V, 31},
    {"request.12.layers.5.k", K, 5},
    {"rank0/layer_5/v", V, 5},
    {"layer5.k", K, 5},
    {"transformer.h.9.attn.k", K, 9},
    {"blk.4.k", K, 4},
    {"decoder.block.2.v", V, 2},
    {"decoder_layers.2.value_states", V, 2},
    {"past_key_values.6.key", K, 6},
    {"past_key_values.6.value", V, 6},
    {"past_key_values.6.decoder.key", K, 6},
    {"present.1.encoder.value", V, 1},
    {"kv_cache.8.k", K, 8},
    {"8.v", V, 8},
    {"key_cache.2", K, 2},
    {"value_cache.2", V, 2},
    {"cache.k_cache_2", K, 2},
    {"k_cache/layer_2", K, 2},
    {"cache_k_l13", K, 13},
    {"cache_v_l13", V, 13},
    {"k", K, -1},
    {"v_cache", V, -1},
    {"pool/value_cache", V, -1},
    /* weights and the rest, with a layer */
    {"model.layers.17.self_attn.k_proj.weight", OTHER, 17},
    {"model.layers.17.self_attn.v_proj.bias", OTHER, 17},
    {"model.layers.17.self_attn.k_proj", OTHER, 17},
    {"model.layers.17.self_attn.k_norm.weight", OTHER, 17},
    {"model.layers.17.self_attn.k_scale", OTHER, 17},
    {"model.layers.17.mlp.experts.3.down_proj.weight", OTHER, 17},
    {"layers.1.mlp.down_proj.exp_avg", OTHER, 1},
    {"layers.6.kv_cache", OTHER, 6},
    {"transformer.h.5.attn.c_attn.weight", OTHER, 5},
    {"h.5.ln_1.bias", OTHER, 5},
    {"blk.22.attn_k.weight", OTHER, 22},
    {"blk.22.attn_v", OTHER, 22},
    {"encoder.layer.3.attention.self.key.weight", OTHER, 3},
    {"vision.resblocks.3.mlp", OTHER, 3},
    {"layers.12", OTHER, 12},
    {"layers.2147483647.w", OTHER, INT32_MAX},
    /* no layer */
    {"model.embed_tokens.weight", OTHER, -1},
    {"lm_head.weight", OTHER, -1},
    {"model.layers.norm.weight", OTHER, -1},
    {"key.weight", OTHER, -1},
    {"kv", OTHER, -1},
    {"monkey", OTHER, -1},
    {"state.5.exp_avg", OTHER, -1},
    {"width.3", OTHER, -1},
    {"layers.2147483648.w", OTHER, -1},
    {"layers.99999999999999999999999999.k", K, -1},
    {"", OTHER, -1},
    {".", OTHER, -1},
    {"layers..k", K, -1},
    {"\xff\xfe.layers.3.\x80.k", K, 3},
};

TEST_LOOP(a_name_tells_the_class, COUNT(names))
{
    assert_class(names[_i].name, names[_i].role, names[_i].layer);
}

TEST(a_name_of_megabytes_has_no_class)
{
    size_t size = 10 * 1000 * 1000;
    char *name = malloc(size + 1);
    memset(name, '.', size);
    strcpy(name + size - 11, ".layers.3.k");
    assert_class(name, OTHER, -1);
    free(name);
}

TEST(a_long_name_has_a_class)
{
    char name[4097];
    memset(name, '.', sizeof(name));
    strcpy(name + sizeof(name) - 12, ".layers.3.k");
    assert_class(name, K, 3);
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

TEST(a_rule_goes_before_the_defaults)
{
    add_rule("^layers\\.([0-9]+)\\.k$=v");
    assert_class("layers.3.k", V, 3);
    assert_class("layers.3.k.k", K, 3);
}

TEST(a_later_rule_goes_before_an_earlier_one)
{
    add_rule("^a=k");
    add_rule("^ab=v");
    assert_class("ab", V, -1);
    assert_class("ac", K, -1);
}

TEST(a_rule_may_hold_equals_signs)
{
    add_rule("a=b=OTHER");
    add_rule("c==K");
    assert_class("layers.3.a=b.k", OTHER, -1);
    assert_class("c=", K, -1);
    assert_class("c", OTHER, -1);
}

TEST(the_first_group_of_digits_is_the_layer)
{
    add_rule("(req[0-9]*)_(stage([0-9]+))?_([0-9]+)=k");
    assert_class("req1_stage2_3", K, 2);
    assert_class("req1__3", K, 3);
    add_rule("^x([0-9])[0-9]*=v");
    assert_class("x123", V, 1);
    add_rule("^y(.*)z=v");
    assert_class("yz", V, -1);
    assert_class("y+3z", V, -1);
    assert_class("y007z", V, 7);
}

static const struct bad_rule {
    const char *rule, *why;
} bad_rules[] = {
    {"", "REGEX=ROLE"},
    {"abc", "REGEX=ROLE"},
    {"=k", "REGEX=ROLE"},
    {"a=", "role"},
    {"a=q", "role"},
    {"a=kv", "role"},
    {"a=k ", "role"},
    {"(=k", "regular expression"},
    {"[a=k", "regular expression"},
    {"a{2,1}=v", "regular expression"},
    {"*[=other", "regular expression"},
    {"()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()=k", "groups"},
};

TEST_LOOP(a_bad_rule_is_refused_and_changes_nothing, COUNT(bad_rules))
{
    const char *why = NULL;
    ck_assert_int_eq(STRAIT_ERR_INVALID, class_rules_add(rules, bad_rules[_i].rule, &why));
    ck_assert_ptr_nonnull(why);
    ck_assert_msg(strstr(why, bad_rules[_i].why) != NULL, "'%s' has no '%s'", why, bad_rules[_i].why);
    assert_class("layers.3.k", K, 3);
}

TEST(no_rules_can_be_destroyed)
{
    class_rules_destroy(NULL);
}

int main(void)
{
    return run_tests("classes", setup, teardown);
}
