/* Both halves of a leg, rule by rule (leg.rules) and under events of any kind in any order, and the queue of their
 * events. How the halves work together is what test_model.c explores. */
#include <check.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/protocol/leg.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define RULES_FILE "tests/protocol/leg.rules"

static struct sink_leg sink;
static struct source_leg source;
static bool is_sink; /* the half that a rule is about */
static struct leg_actions actions;

/* ---- Numbers by their names -------------------------------------------------------------------------------------- */

/* Where a number is in a struct; lists have several, `stride` bytes apart. */
struct place {
    const char *name;
    size_t offset, size, stride;
};

#define PLACE(type, name, field)                                      \
    {                                                                 \
        name, offsetof(type, field), sizeof(((type *)NULL)->field), 0 \
    }
#define LIST(type, name, list, field, step)                                        \
    {                                                                              \
        name, offsetof(type, list field), sizeof(((type *)NULL)->list field), step \
    }
#define EVENT(name, field)  PLACE(struct leg_event, name, field)
#define ACTION(name, field) PLACE(struct leg_action, name, field)
#define GRANTS(type)                                                       \
    LIST(type, "ids", grants[0], .id, sizeof(struct leg_grant)),           \
        LIST(type, "slots", grants[0], .slot, sizeof(struct leg_grant)),   \
        LIST(type, "counts", grants[0], .count, sizeof(struct leg_grant)), \
        LIST(type, "grants", grants[0], .state, sizeof(struct leg_grant))
#define LEG(type)                                                                            \
    PLACE(type, "state", state), PLACE(type, "reason", reason), PLACE(type, "ready", ready), \
        PLACE(type, "closed", closed), GRANTS(type)

static const struct place event_places[] = {
    EVENT("reason", reason),
    EVENT("last", last),
    EVENT("id", grant),
    EVENT("before", before),
    EVENT("first", first),
    EVENT("count", count),
    EVENT("slot", slot),
    EVENT("opens", opens),
    LIST(struct leg_event, "slots", slots, [0], sizeof(uint32_t)),
    LIST(struct leg_event, "units", units, [0], sizeof(uint32_t)),
    {NULL, 0, 0, 0},
};
/* REQUEST, SEGMENTS and STATE have their own numbers, the other actions those of their grant. */
static const struct place message_places[] = {
    ACTION("id", grant.id), ACTION("first", first), ACTION("count", count),
    ACTION("last", last),   ACTION("state", state), {NULL, 0, 0, 0},
};
static const struct place grant_places[] = {
    ACTION("reason", reason),
    ACTION("id", grant.id),
    ACTION("first", grant.first),
    ACTION("count", grant.count),
    ACTION("slot", grant.slot),
    ACTION("state", grant.state),
    {NULL, 0, 0, 0},
};
static const struct place sink_places[] = {
    LEG(struct sink_leg),
    PLACE(struct sink_leg, "granted", granted),
    PLACE(struct sink_leg, "window", window),
    PLACE(struct sink_leg, "returned", returned_count),
    {NULL, 0, 0, 0},
};
static const struct place source_places[] = {
    LEG(struct source_leg),
    PLACE(struct source_leg, "seen", seen),
    PLACE(struct source_leg, "opened", opened),
    LIST(struct source_leg, "units", opened_units, [0], sizeof(uint32_t)),
    {NULL, 0, 0, 0},
};

static const char *const words[][14] = {
    {
#define X(name, value, text) [value] = #name,
        STRAIT_REASON_MAP(X)
#undef X
    },
    {"failed", "bootstrap", "ready", "transferring", "done"},
    {"none", "given", "revoking", "arriving", "decoding", "open", "early", "void", "dropped", "queued", "encoding",
     "sending"},
};

static char here[256]; /* the line of the rules that is read */

static uint64_t number_of(const char *text)
{
    if ((text[0] >= '0' && text[0] <= '9') || text[0] == '-')
        return (uint64_t)strtoll(text, NULL, 10);
    for (int list = 0; list < COUNT(words); list++)
        for (uint64_t i = 0; i < COUNT(words[0]); i++)
            if (words[list][i] != NULL && strcasecmp(words[list][i], text) == 0)
                return i;
    ck_abort_msg("%s: %s is no number", here, text);
    return 0;
}

static const struct place *place_of(const struct place *places, const char *name)
{
    while (places->name != NULL && strcmp(places->name, name) != 0)
        places++;
    ck_assert_msg(places->name != NULL, "%s: there is no %s", here, name);
    return places;
}

/* Sets a number, or several separated by commas; returns how many. */
static uint32_t set_numbers(void *base, const struct place *place, char *values)
{
    uint32_t count = 0;
    for (char *value; (value = strsep(&values, ",")) != NULL; count++) {
        const uint64_t number = number_of(value);
        memcpy((char *)base + place->offset + count * place->stride, &number, place->size);
    }
    return count;
}

static void check_numbers(const void *base, const struct place *place, char *values)
{
    uint32_t count = 0;
    for (char *value; (value = strsep(&values, ",")) != NULL; count++) {
        uint64_t number = 0, wanted = number_of(value);
        memcpy(&number, (const char *)base + place->offset + count * place->stride, place->size);
        wanted &= UINT64_MAX >> (64 - 8 * place->size);
        ck_assert_msg(number == wanted, "%s: %s is %llu", here, place->name, (unsigned long long)number);
    }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static const char *const sink_events[] = {"start",    "segments", "grant", "reclaim", "released",
                                          "arriving", "arrived",  "ahead", "absent",  "decoded",
                                          "finish",   "end",      "fail",  "quiet",   NULL};
static const char *const source_events[] = {"bind",    "more", "grant", "revoke", "encode",
                                            "encoded", "sent", "end",   "fail",   NULL};
static const char *const action_names[] = {"request",  "segments", "grant",   "revoke", "released", "end",
                                           "encode",   "transmit", "accept",  "decode", "free",     "state",
                                           "complete", "verdict",  "drained", "closed", NULL};

static int index_of(const char *const *names, const char *name)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    ck_abort_msg("%s: %s is unknown", here, name);
    return -1;
}

/* Takes the next word of a text, "NAME" or "NAME=VALUE". */
static bool next_word(char **text, char **name, char **value)
{
    static char one[2];
    do
        *name = strsep(text, " ");
    while (*name != NULL && **name == '\0');
    if (*name == NULL)
        return false;
    *value = *name;
    strsep(value, "=");
    if (*value == NULL)
        *value = strcpy(one, "1");
    return true;
}

static struct leg_event event_of(char *text, char *first)
{
    struct leg_event event = {.type = is_sink ? (enum leg_event_type)(SINK_START + index_of(sink_events, first))
                                              : (enum leg_event_type)(SOURCE_BIND + index_of(source_events, first))};
    uint32_t opens = 0;
    for (char *name, *value; next_word(&text, &name, &value);) {
        const struct place *place = place_of(event_places, name);
        uint32_t count = set_numbers(&event, place, value);
        if (place->stride != 0 && count > opens)
            opens = count;
    }
    if (event.opens == 0)
        event.opens = opens;
    return event;
}

static void check_actions(char *text)
{
    uint32_t count = 0;
    for (char *one; (one = strsep(&text, ",")) != NULL; count++) {
        char *name, *value;
        if (!next_word(&one, &name, &value))
            break;
        const struct leg_action *action = &actions.list[count];
        ck_assert_msg(count < actions.count, "%s: no %s", here, name);
        ck_assert_msg((int)action->type == index_of(action_names, name), "%s: %s instead of %s", here,
                      action_names[action->type], name);
        bool message =
            action->type == LEG_SEND_REQUEST || action->type == LEG_SEND_SEGMENTS || action->type == LEG_STATE;
        while (next_word(&one, &name, &value))
            check_numbers(action, place_of(message ? message_places : grant_places, name), value);
    }
    ck_assert_msg(count == actions.count, "%s: and %s", here, action_names[actions.list[count].type]);
}

static void check_wants(const char *value)
{
    uint32_t first = 0, count = 0;
    char range[32];
    bool wants = is_sink ? sink_wants(&sink, &first, &count) : source_wants(&source);
    snprintf(range, sizeof(range), "%u+%u", first, count);
    ck_assert_msg(strcmp(value, is_sink ? range : wants ? "1" : "0") == 0, "%s: it wants %s", here, range);
    ck_assert(!is_sink || wants == (count > 0));
}

static void check_leg(char *text, bool same)
{
    for (char *name, *value; next_word(&text, &name, &value);)
        if (strcmp(name, "wants") == 0)
            check_wants(value);
        else if (strcmp(name, "unused") == 0)
            ck_assert_msg(sink_unused(&sink) == number_of(value), "%s: not so", here);
        else if (strcmp(name, "same") == 0)
            ck_assert_msg(same, "%s: not so", here);
        else
            check_numbers(is_sink ? (void *)&sink : &source, place_of(is_sink ? sink_places : source_places, name),
                          value);
}

static bool step_leg(const struct leg_event *event)
{
    return is_sink ? sink_step(&sink, event, &actions) : source_step(&source, event, &actions);
}

/* One step of a rule, in the form that leg.rules explains. */
static void take_step(char *text)
{
    const struct sink_leg sink_before = sink;
    const struct source_leg source_before = source;
    char none[] = "", *name, *value;
    strsep(&(char *){text}, "#");
    char *done = text, *is = strsep(&done, "|") != NULL && done != NULL ? done : none;
    done = text;
    strsep(&done, ">");
    ck_assert(next_word(&text, &name, &value));
    const bool honest = strcmp(name, "!") != 0;
    ck_assert(honest || next_word(&text, &name, &value));
    const struct leg_event event = event_of(text, name);
    ck_assert_msg(step_leg(&event) == honest, "%s: %s", here, honest ? "it is false" : "it is believed");
    bool same =
        is_sink ? memcmp(&sink, &sink_before, sizeof(sink)) == 0 : memcmp(&source, &source_before, sizeof(source)) == 0;
    ck_assert_msg(honest || !is_sink || same, "%s: the leg has changed", here);
    check_actions(done != NULL ? done : none);
    check_leg(is, same);
}

static void __attribute__((format(printf, 1, 2))) step(const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(here, sizeof(here), "%s", text);
    take_step(text);
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

enum { RULES_MAX = 120, STEPS_MAX = 16 };

static struct rule {
    char *head;       /* "sink 8: what it shows [name]" */
    const char *name; /* "[name]", or NULL */
    struct {
        int line;
        char *text;
    } steps[STEPS_MAX];
    int step_count;
} rules[RULES_MAX];
static int rule_count;

/* Before the tests list themselves. */
static void __attribute__((constructor)) read_rules(void)
{
    char line[256];
    FILE *file = fopen(RULES_FILE, "r");
    require(file != NULL);
    for (int number = 1; fgets(line, sizeof(line), file) != NULL; number++) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || line[0] == '\0')
            continue;
        char *text = strdup(line);
        require(text != NULL);
        if (text[0] != ' ') {
            require(rule_count < RULES_MAX);
            rules[rule_count++] = (struct rule){.head = text, .name = strchr(text, '[')};
            continue;
        }
        struct rule *rule = &rules[rule_count - 1];
        require(rule_count > 0 && rule->step_count < STEPS_MAX);
        rule->steps[rule->step_count].line = number;
        rule->steps[rule->step_count++].text = text;
    }
    fclose(file);
}

static void begin_sink(uint32_t window)
{
    is_sink = true;
    sink_init(&sink, window);
}

static void begin_source(void)
{
    is_sink = false;
    source_init(&source);
}

static const struct rule *rule_named(const char *name)
{
    for (int i = 0; i < rule_count; i++)
        if (rules[i].name != NULL && strncmp(rules[i].name + 1, name, strlen(name)) == 0 &&
            rules[i].name[1 + strlen(name)] == ']')
            return &rules[i];
    ck_abort_msg("%s: no rule is called %s", here, name);
    return NULL;
}

static void follow(const struct rule *rule)
{
    for (int i = 0; i < rule->step_count; i++) {
        char text[256];
        snprintf(text, sizeof(text), "%s", rule->steps[i].text);
        snprintf(here, sizeof(here), RULES_FILE ":%d: %.150s", rule->steps[i].line, rule->head);
        if (strncmp(text, "    = ", 6) == 0)
            follow(rule_named(text + 6));
        else
            take_step(text);
    }
}

TEST_LOOP(a_rule_holds, rule_count)
{
    uint32_t window;
    if (sscanf(rules[_i].head, "sink %u:", &window) == 1)
        begin_sink(window);
    else if (strncmp(rules[_i].head, "source:", 7) == 0)
        begin_source();
    else
        ck_abort_msg("neither a sink nor a source: %s", rules[_i].head);
    follow(&rules[_i]);
}

/* Its units are granted like all others, and chunks for what was never open are refused. */
TEST_LOOP(a_false_source_names_what_was_not_open, 5)
{
    static const struct {
        int id;
        bool names_one; /* of the three that are open */
    } strange[] = {{4, false}, {3, true}, {0, true}, {-1, true}, {-2, false}};
    const bool moves = strange[_i].names_one;
    begin_sink(LEG_GRANTS);
    step("start slots=3,4,5 > request id=1 count=3");
    step("segments id=%d units=1,2,3 count=6 last > %s", strange[_i].id, moves ? "state, state" : "state");
    for (int id = 4; id < 7; id++)
        step("arriving id=%d", id);
    for (int id = 1; id <= 3; id++)
        step("released id=%d > free", id);
    for (uint32_t given = 0, at, count; given < 6; given += count) { /* each unit once */
        ck_assert(sink_wants(&sink, &at, &count));
        ck_assert_uint_eq(given, at);
        step("grant slot=9 count=%u > %sgrant count=%u", count, given == 0 && !moves ? "state, " : "", count);
    }
    step("arriving id=0 | wants=6+0");
}

TEST(ranges_are_not_cut_into_more_pieces_than_can_be_remembered)
{
    begin_sink(LEG_GRANTS);
    step("start > request");
    step("segments count=100 last > state");
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        step("grant slot=%u count=4 > %sgrant", i, i == 0 ? "state, " : "");
    for (uint32_t id = 1; id <= LEG_GRANTS; id++)
        step("released id=%u > free | returned=%u", id, id);
    step("grant slot=0 count=3 > free");
    step("grant slot=0 count=4 > grant");
    step("arriving id=9 > accept");
    step("arrived id=9 > decode");
    step("decoded id=9 > free");
    step("grant slot=0 count=3 > grant | wants=7+1"); /* now there is room */
}

TEST(grants_may_come_before_the_last_chunks_are_known_to_be_sent)
{
    begin_source();
    step("bind count=100 last > state, segments");
    for (uint32_t id = 1; id <= SOURCE_GRANTS; id++) {
        step("grant id=%u count=1 %s", id, id == 1 ? "> state" : "");
        step("encode > encode");
        step("encoded id=%u > transmit", id);
    }
    step("grant id=%u count=1 > released", SOURCE_GRANTS + 1); /* no room: not used, no harm */
    step("sent id=4 > free");
    step("grant id=%u count=1 | wants=1", SOURCE_GRANTS + 2);
}

TEST(failures_of_the_peer_are_seen_from_here)
{
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_NONE), STRAIT_REASON_NONE);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_ABORTED), STRAIT_REASON_PEER_ABORT);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_LOCAL), STRAIT_REASON_PEER_DOWN);
    ck_assert_int_eq((int)leg_peer_reason(STRAIT_REASON_INTEGRITY), STRAIT_REASON_INTEGRITY);
}

/* ---- Any event in any state -------------------------------------------------------------------------------------- */

/* Rules for every leg, whatever happens: reports come once and in order, each slot given is freed at most once. */
struct ledger {
    bool verdict, drained, closed;
    uint32_t state;
    int slots; /* that the leg holds */
};

static void tell_end(struct ledger *ledger, enum leg_action_type type)
{
    if (type == LEG_VERDICT) {
        ck_assert(!ledger->verdict);
        ledger->verdict = true;
    } else if (type == LEG_DRAINED) {
        ck_assert(ledger->verdict && !ledger->drained);
        ledger->drained = true;
    } else if (type == LEG_CLOSED) {
        ck_assert(ledger->drained && !ledger->closed);
        ck_assert_int_eq(ledger->slots, 0);
        ledger->closed = true;
    }
}

/* Records the actions of the last event; none may contradict the ledger. */
static void keep(struct ledger *ledger)
{
    ck_assert_uint_le(actions.count, LEG_ACTIONS);
    for (uint32_t i = 0; i < actions.count; i++) {
        enum leg_action_type type = actions.list[i].type;
        ledger->slots += (type == LEG_ENCODE) - (type == LEG_FREE_SLOT);
        ck_assert_int_ge(ledger->slots, 0);
        ck_assert(!ledger->drained || (type != LEG_DECODE && type != LEG_ENCODE && type != LEG_TRANSMIT));
        ck_assert(!ledger->verdict || (type != LEG_ACCEPT && type != LEG_STATE && type != LEG_COMPLETE));
        if (type == LEG_STATE) {
            ck_assert_uint_gt((uint32_t)actions.list[i].state, ledger->state);
            ledger->state = (uint32_t)actions.list[i].state;
        }
        tell_end(ledger, type);
    }
}

/* Requires grants sorted by id, and nothing after the last. */
static void check_table(const struct leg_grant *grants, uint32_t capacity, int slots)
{
    static const struct leg_grant none;
    uint32_t count = 0;
    while (count < capacity && grants[count].id != 0)
        count++;
    for (uint32_t i = 1; i < count; i++)
        ck_assert_uint_lt(grants[i - 1].id, grants[i].id);
    for (uint32_t i = count; i < capacity; i++)
        ck_assert_mem_eq(&grants[i], &none, sizeof(none));
    ck_assert_int_le(slots, (int)count);
}

/* An event of any type in from..to. */
static struct leg_event random_event(struct rng *rng, int from, int to)
{
    struct leg_event event = {.type = (enum leg_event_type)(from + (int)rng_below(rng, (uint32_t)(to - from + 1))),
                              .last = rng_below(rng, 12) == 0,
                              .grant = rng_below(rng, 30),
                              .count = rng_below(rng, 6)};
    if (rng_below(rng, 8) == 0)
        event.reason = (enum strait_reason)rng_below(rng, 12);
    event.first = rng_below(rng, 20);
    event.slot = rng_below(rng, 4);
    event.opens = event.grant == 0 ? 0 : rng_below(rng, 4);
    for (uint32_t i = 0; i < event.opens; i++) {
        event.slots[i] = rng_below(rng, 4);
        event.units[i] = rng_below(rng, 8) == 0 ? rng_below(rng, 8) : 1;
    }
    return event;
}

/* Mostly the id of a random existing grant. */
static uint64_t some_grant(struct rng *rng, const struct leg_grant *grants, uint32_t capacity, uint64_t other)
{
    uint64_t id = grants[rng_below(rng, capacity)].id;
    return id == 0 || rng_below(rng, 10) == 0 ? other : id;
}

static void tell(struct ledger *ledger, struct leg_event event)
{
    step_leg(&event);
    keep(ledger);
}

static uint32_t units_elsewhere(void)
{
    uint32_t units = sink.landed + (sink.ready - sink.granted);
    for (uint32_t i = 0; i < LEG_GRANTS; i++)
        units += sink.grants[i].count + sink.returned[i].count;
    return units;
}

TEST_LOOP(a_sink_keeps_its_books_whatever_happens, 4)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    for (int run = 0; run < 300 / STRIDE; run++) {
        struct ledger ledger = {.state = STRAIT_BOOTSTRAP};
        begin_sink(1 + rng_below(&rng, LEG_GRANTS));
        for (int step = 0; step < 300; step++) {
            struct leg_event event = random_event(&rng, SINK_START, SOURCE_BIND - 1);
            bool rare = event.type == SINK_FAIL || event.type == SINK_END || event.type == SINK_QUIET;
            if (rare && rng_below(&rng, 20) != 0)
                continue;
            if (event.type >= SINK_RELEASED && event.type <= SINK_DECODED)
                event.grant = some_grant(&rng, sink.grants, LEG_GRANTS, event.grant);
            event.before = rng_below(&rng, 5) ? sink.ready : event.first;
            if (event.type == SINK_SEGMENTS && rng_below(&rng, 4))
                event.grant = some_grant(&rng, sink.grants, LEG_GRANTS, event.grant);
            const struct sink_leg before = sink;
            ledger.slots += event.type == SINK_GRANT ? 1 : event.type == SINK_START ? (int)event.opens : 0;
            bool honest = step_leg(&event);
            ck_assert(honest || memcmp(&before, &sink, sizeof(sink)) == 0);
            keep(&ledger);
            check_table(sink.grants, LEG_GRANTS, ledger.slots);
            ck_assert(ledger.verdict || units_elsewhere() == sink.ready);
            ck_assert(!before.closed || memcmp(&before, &sink, sizeof(sink)) == 0);
        }
        tell(&ledger, (struct leg_event){.type = SINK_FAIL, .reason = STRAIT_REASON_TIMEOUT});
        for (uint64_t id; (id = sink.grants[0].id) != 0;) {
            tell(&ledger, (struct leg_event){.type = SINK_RELEASED, .grant = id});
            tell(&ledger, (struct leg_event){.type = SINK_ARRIVED, .grant = id});
            tell(&ledger, (struct leg_event){.type = SINK_ABSENT, .grant = id});
            tell(&ledger, (struct leg_event){.type = SINK_DECODED, .grant = id});
        }
        tell(&ledger, (struct leg_event){.type = SINK_QUIET});
        ck_assert(ledger.closed);
    }
}

/* A grant is used, or comes back; a false one too. */
static bool is_answered(uint64_t id)
{
    for (uint32_t i = 0; i < SOURCE_GRANTS; i++)
        if (source.grants[i].id == id)
            return true;
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == LEG_SEND_RELEASED && actions.list[i].grant.id == id)
            return true;
    return source.opened != 0 && id >= source.opened && id < source.opened + LEG_GRANTS &&
           source.opened_units[id - source.opened] != 0;
}

TEST_LOOP(a_source_keeps_its_books_whatever_happens, 4)
{
    struct rng rng = rng_init(550 + (uint64_t)_i);
    for (int run = 0; run < 300 / STRIDE; run++) {
        struct ledger ledger = {.state = STRAIT_BOOTSTRAP};
        begin_source();
        for (int step = 0; step < 300; step++) {
            struct leg_event event = random_event(&rng, SOURCE_BIND, SOURCE_FAIL);
            if ((event.type == SOURCE_FAIL || event.type == SOURCE_END) && rng_below(&rng, 20) != 0)
                continue;
            if (event.type >= SOURCE_REVOKE && event.type <= SOURCE_SENT)
                event.grant = some_grant(&rng, source.grants, SOURCE_GRANTS, event.grant);
            if (event.type == SOURCE_GRANT && rng_below(&rng, 3))
                event.grant = source.seen + 1;
            const struct source_leg before = source;
            bool honest = step_leg(&event);
            keep(&ledger);
            check_table(source.grants, SOURCE_GRANTS, ledger.slots);
            if (event.type == SOURCE_GRANT && event.grant != 0)
                ck_assert(is_answered(event.grant));
            for (uint32_t i = 0; i < event.opens && event.type == SOURCE_BIND; i++)
                ck_assert(is_answered(event.grant + i));
            ck_assert(honest || source.state == before.state);
        }
        tell(&ledger, (struct leg_event){.type = SOURCE_FAIL, .reason = STRAIT_REASON_TIMEOUT});
        for (uint64_t id; (id = source.grants[0].id) != 0;) {
            tell(&ledger, (struct leg_event){.type = SOURCE_ENCODED, .grant = id});
            tell(&ledger, (struct leg_event){.type = SOURCE_SENT, .grant = id});
        }
        ck_assert(ledger.closed);
        ck_assert_int_eq(ledger.slots, 0);
    }
}

/* ---- The queue of events ----------------------------------------------------------------------------------------- */

static struct leg_queue queue;
static uint64_t queued, taken;

static void append_one(void)
{
    leg_queue_append(&queue, &(struct leg_post){.event = {.grant = queued++}});
}

static void take_one(void)
{
    struct leg_post post;
    ck_assert(leg_queue_take(&queue, &post));
    ck_assert_uint_eq(taken++, post.event.grant);
}

#ifdef NDEBUG
enum { WAYS_TO_GROW = 2 };
#else
enum { WAYS_TO_GROW = 1 }; /* an assertion is before the other */
#endif

/* When a leg is added, and when events do not fit: the ring has no room left and has wrapped. */
TEST_LOOP(a_queue_that_grows_keeps_its_order, WAYS_TO_GROW)
{
    queued = taken = 0;
    ck_assert(leg_queue_reserve(&queue));
    const uint32_t capacity = queue.capacity;
    while (queued < capacity)
        append_one();
    while (taken < capacity / 2)
        take_one();
    while (queue.count < capacity)
        append_one();
    while (queue.capacity == capacity)
        if (_i == 0)
            ck_assert(leg_queue_reserve(&queue));
        else
            append_one();
    while (queue.count < queue.capacity)
        append_one();
    while (taken < queued)
        take_one();
    ck_assert(!leg_queue_take(&queue, &(struct leg_post){0}));
    leg_queue_fini(&queue);
}

int main(void)
{
    return run_tests("leg", NULL, NULL);
}
