#include "tools/classes.h"

#include <ctype.h>
#include <regex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GROUPS_MAX     32    /* of a regex, including the whole match */
#define NAME_BYTES_MAX 4096u /* no model has longer names, and regexec is slow on them */

struct class_rule {
    regex_t regex;
    enum strait_role role;
    struct class_rule *next;
};

struct class_rules {
    struct class_rule *first;
};

/* ---- Defaults -------------------------------------------------------------------------------------------------- */

/* Parts of a name end at a dot or slash. A cached K is a part of its own at the end of the name: `layers.3.k`,
 * `past_key_values.3.key`, `model.layers.3.self_attn.k_cache`, `key_cache.3`. Weights end in another part
 * (`k_proj.weight`) or have a longer one (`attn_k`), so they are `other`, with their layer. */
#define AT      "(^|[./])"
#define LAYER   AT "([[:alpha:]_]*(layers?|blocks?|blk)[._/]?|h[./])([0-9]+)" /* layers.3, h.3, blk.3, layer_3 */
#define BETWEEN "[./](.*[./])?"
#define K       "(past_|cached?_)?(k|key|keys)(_cache|_states?)?"
#define V       "(past_|cached?_)?(v|value|values)(_cache|_states?)?"
#define PIECE   "([._/][0-9]+)?$"                  /* a cache in several pieces: layers.3.k_cache.0 */
#define INDEX   "[._/](l|layers?[._/]?)?([0-9]+)$" /* key_cache.3, cache_k_l3, k_cache/layer_3 */

static const char *const default_rules[] = {
    LAYER BETWEEN K PIECE "=k",
    LAYER BETWEEN V PIECE "=v",
    AT "([0-9]+)" BETWEEN K "$=k", /* past_key_values.3.key, present.3.decoder.key */
    AT "([0-9]+)" BETWEEN V "$=v",
    AT K INDEX "=k",
    AT V INDEX "=v",
    AT K "$=k",
    AT V "$=v",
    LAYER "([._/]|$)=other",
};

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

static bool parse_role(const char *text, enum strait_role *role)
{
    static const char *const names[] = {
        [STRAIT_ROLE_OTHER] = "other",
        [STRAIT_ROLE_K] = "k",
        [STRAIT_ROLE_V] = "v",
    };
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(text, names[i]) == 0) {
            *role = (enum strait_role)i;
            return true;
        }
    }
    return false;
}

/* On success the caller owns *made, with its regex. */
static enum strait_status rule_create(const char *pattern, enum strait_role role, struct class_rule **made,
                                      const char **why)
{
    struct class_rule *rule = malloc(sizeof(*rule));
    *why = "out of memory";
    if (rule == NULL)
        return STRAIT_ERR_NO_MEMORY;
    int failed = regcomp(&rule->regex, pattern, REG_EXTENDED);
    if (failed == 0 && rule->regex.re_nsub < GROUPS_MAX) {
        rule->role = role;
        *made = rule;
        return STRAIT_OK;
    }
    if (failed == 0)
        regfree(&rule->regex);
    free(rule);
    if (failed == REG_ESPACE)
        return STRAIT_ERR_NO_MEMORY;
    *why = failed != 0 ? "not a POSIX extended regular expression" : "more than 31 groups";
    return STRAIT_ERR_INVALID;
}

enum strait_status class_rules_add(struct class_rules *rules, const char *rule, const char **why)
{
    enum strait_role role;
    struct class_rule *made;
    const char *equals = strrchr(rule, '='); /* the last one: a regex may hold others */
    *why = "not of the form REGEX=ROLE";
    if (equals == NULL || equals == rule)
        return STRAIT_ERR_INVALID;
    *why = "the role is not k, v or other";
    if (!parse_role(equals + 1, &role))
        return STRAIT_ERR_INVALID;
    char *pattern = strndup(rule, (size_t)(equals - rule));
    *why = "out of memory";
    if (pattern == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = rule_create(pattern, role, &made, why);
    free(pattern);
    if (status != STRAIT_OK)
        return status;
    made->next = rules->first;
    rules->first = made;
    *why = NULL;
    return STRAIT_OK;
}

struct class_rules *class_rules_create(void)
{
    struct class_rules *rules = calloc(1, sizeof(*rules));
    if (rules == NULL)
        return NULL;
    for (size_t i = sizeof(default_rules) / sizeof(default_rules[0]); i-- > 0;) {
        const char *why;
        if (class_rules_add(rules, default_rules[i], &why) != STRAIT_OK) {
            class_rules_destroy(rules);
            return NULL;
        }
    }
    return rules;
}

void class_rules_destroy(struct class_rules *rules)
{
    if (rules == NULL)
        return;
    for (struct class_rule *rule = rules->first, *next; rule != NULL; rule = next) {
        next = rule->next;
        regfree(&rule->regex);
        free(rule);
    }
    free(rules);
}

/* ---- Matching -------------------------------------------------------------------------------------------------- */

static bool group_is_number(const char *name, regmatch_t group)
{
    for (regoff_t i = group.rm_so; i < group.rm_eo; i++)
        if (!isdigit((unsigned char)name[i]))
            return false;
    return group.rm_so >= 0 && group.rm_eo > group.rm_so; /* a group that took no part has offsets of -1 */
}

/* -1 for numbers that no layer has. */
static int32_t read_layer(const char *name, regmatch_t group)
{
    int64_t number = 0;
    for (regoff_t i = group.rm_so; i < group.rm_eo; i++) {
        number = 10 * number + (name[i] - '0');
        if (number > INT32_MAX)
            return -1;
    }
    return (int32_t)number;
}

static int32_t layer_of(const char *name, const regmatch_t groups[GROUPS_MAX])
{
    for (unsigned g = 1; g < GROUPS_MAX; g++)
        if (group_is_number(name, groups[g]))
            return read_layer(name, groups[g]);
    return -1;
}

struct strait_class class_of(const struct class_rules *rules, const char *name)
{
    regmatch_t groups[GROUPS_MAX];
    if (strnlen(name, NAME_BYTES_MAX + 1) <= NAME_BYTES_MAX)
        for (const struct class_rule *rule = rules->first; rule != NULL; rule = rule->next)
            if (regexec(&rule->regex, name, GROUPS_MAX, groups, 0) == 0)
                return (struct strait_class){.role = rule->role, .layer = layer_of(name, groups)};
    return (struct strait_class){.role = STRAIT_ROLE_OTHER, .layer = -1};
}
