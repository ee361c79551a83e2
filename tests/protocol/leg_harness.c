/* Looks at actions only: it does not know which half of a leg they are of. */
#include "tests/protocol/leg_harness.h"
#include "tests/run_suite.h"

struct leg_actions actions;

/* ---- What the last event did ------------------------------------------------------------------------------------- */

void did_nothing(void)
{
    ck_assert_uint_eq(actions.count, 0);
}

const struct leg_action *first(enum leg_action_type type)
{
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == type)
            return &actions.list[i];
    ck_abort_msg("no such action");
    return NULL;
}

/* ---- Any event in any state -------------------------------------------------------------------------------------- */

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

void keep(struct ledger *ledger)
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

void check_table(const struct leg_grant *grants, uint32_t capacity, int slots)
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

struct leg_event random_event(struct rng *rng, int from, int to)
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

uint64_t some_grant(struct rng *rng, const struct leg_grant *grants, uint32_t capacity, uint64_t other)
{
    uint64_t id = grants[rng_below(rng, capacity)].id;
    return id == 0 || rng_below(rng, 10) == 0 ? other : id;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

int leg_main(const char *name, TCase *tcase)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
