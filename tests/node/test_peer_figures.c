/* Figures of peers: bounded in number, and nothing that was counted is lost. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "daemon/peer_figures.h"
#include "tests/run_suite.h"
#include "tests/support.h"

struct sums {
    uint32_t rows;
    uint64_t raw, wire, failures, by_wires;
};

static void add(void *arg, struct peer_figures *figures)
{
    struct sums *sums = arg;
    sums->rows++;
    sums->raw += figures->raw_bytes_sent + figures->raw_bytes_landed;
    sums->wire += figures->wire_bytes_sent + figures->wire_bytes_landed;
    sums->by_wires += figures->ucx_gpus;
    for (unsigned w = 0; w < WIRE_NONE; w++)
        sums->by_wires += figures->wires[w];
    for (unsigned f = 0; f < PEER_FAILURES; f++)
        sums->failures += figures->failures[f];
}

static struct sums sums_of(struct peer_figures_table *table)
{
    struct sums sums = {0};
    peer_figures_each(table, add, &sums);
    return sums;
}

static struct peer_figures *take(struct peer_figures_table *table, unsigned number)
{
    char address[32];
    snprintf(address, sizeof(address), "10.0.%u.%u:7350", number / 256, number % 256);
    return peer_figures_take(table, address);
}

TEST(all_connections_with_an_address_share_a_row)
{
    struct peer_figures_table table;
    peer_figures_init(&table);
    struct peer_figures *first = take(&table, 1), *second = take(&table, 2);
    ck_assert_ptr_eq(first, take(&table, 1));
    ck_assert_ptr_ne(first, second);
    ck_assert_uint_eq(2, first->uses);
    ck_assert_str_eq("10.0.0.1:7350", first->address);
    ck_assert_uint_eq(3, sums_of(&table).rows); /* and the others */
    peer_figures_fini(&table);
}

TEST(a_row_without_connections_is_given_up_for_a_new_peer_and_its_counts_are_kept)
{
    struct peer_figures_table table;
    peer_figures_init(&table);
    const struct chunk_path tcp = {.wire = WIRE_TCP}, ucx = {.wire = WIRE_UCX, .gpus = true};
    for (unsigned i = 0; i < 3 * PEER_FIGURES_MAX; i++) {
        struct peer_figures *figures = take(&table, i);
        ck_assert_ptr_ne(figures, &table.others);
        peer_figures_sent(figures, i % 2 == 0 ? tcp : ucx, 10, 15);
        peer_figures_arrived(figures, 20);
        peer_figures_landed(figures, 30);
        peer_figures_failed(figures, PEER_FAILED_CONNECTION);
        peer_figures_leave(figures);
    }
    const struct sums sums = sums_of(&table);
    ck_assert_uint_eq(PEER_FIGURES_MAX + 1, sums.rows);
    ck_assert_uint_eq(3 * PEER_FIGURES_MAX * 45, sums.raw);
    ck_assert_uint_eq(3 * PEER_FIGURES_MAX * 30, sums.wire);
    ck_assert_uint_eq(3 * PEER_FIGURES_MAX * 10, sums.by_wires);
    ck_assert_uint_eq(3 * PEER_FIGURES_MAX, sums.failures);
    ck_assert_uint_eq(2 * PEER_FIGURES_MAX * 15, table.others.raw_bytes_sent);
    ck_assert_uint_eq(PEER_FIGURES_MAX * 10, table.others.ucx_gpus);
    peer_figures_fini(&table);
}

TEST(peers_beyond_the_bound_that_are_all_connected_share_the_others)
{
    struct peer_figures_table table;
    peer_figures_init(&table);
    struct peer_figures *first = take(&table, 0);
    for (unsigned i = 1; i < PEER_FIGURES_MAX; i++)
        (void)take(&table, i);
    ck_assert_ptr_eq(&table.others, take(&table, PEER_FIGURES_MAX));
    peer_figures_leave(&table.others);
    peer_figures_leave(first); /* one place is free now */
    ck_assert_str_eq("10.0.0.128:7350", take(&table, PEER_FIGURES_MAX)->address);
    ck_assert_uint_eq(PEER_FIGURES_MAX + 1, sums_of(&table).rows);
    peer_figures_fini(&table);
}

TEST(what_a_side_aborts_is_no_failure_of_the_peer)
{
    struct peer_figures_table table;
    peer_figures_init(&table);
    struct peer_figures *figures = take(&table, 1);
    peer_figures_verdict(figures, STRAIT_REASON_NONE);
    peer_figures_verdict(figures, STRAIT_REASON_ABORTED);
    peer_figures_verdict(figures, STRAIT_REASON_PEER_ABORT);
    ck_assert_uint_eq(0, sums_of(&table).failures);
    peer_figures_verdict(figures, STRAIT_REASON_PEER_DOWN);
    peer_figures_verdict(NULL, STRAIT_REASON_PEER_DOWN);
    ck_assert_uint_eq(1, figures->failures[PEER_FAILED_TRANSFER]);
    peer_figures_fini(&table);
}

int main(void)
{
    return run_tests("peer_figures", NULL, NULL);
}
