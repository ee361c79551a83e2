#include <check.h>
#include <stdlib.h>

#include "bench/transfer_wires.h"
#include "tests/run_suite.h"

/* As a daemon writes it: other families beside, in any order. */
static const char text[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
                           "# HELP strait_chunk_wire_bytes_total Bytes of chunks as they travelled.\n"
                           "strait_chunk_wire_bytes_total{direction=\"sent\"} 7\n"
                           "# TYPE strait_wire_bytes_total counter\n"
                           "strait_wire_bytes_total{wire=\"shm\"} 0\n"
                           "strait_wire_bytes_total{wire=\"peer\"} 9007199254740993\n"
                           "strait_wire_bytes_total{wire=\"pinned\"} 100\n"
                           "strait_slots 64\n";

START_TEST(each_wire_is_read_by_name)
{
    struct wire_figures figures;
    char name[WIRES_TEXT_BYTES];

    wire_figures_read(&figures, text);
    ck_assert_uint_eq(figures.count, 3);
    ck_assert_str_eq(figures.wires[1].name, "peer");
    ck_assert_uint_eq(figures.wires[1].bytes, 9007199254740993u);
    wire_figures_name(&figures, name);
    ck_assert_str_eq(name, "peer+pinned");
}
END_TEST

START_TEST(what_has_landed_is_not_counted_again)
{
    struct wire_figures figures;

    wire_figures_read(&figures, "\nstrait_wire_bytes_total{wire=\"peer\",direction=\"sent\"} 5\n"
                                "strait_wire_bytes_total{direction=\"landed\",wire=\"peer\"} 6\n"
                                "strait_wire_bytes_total{direction=\"sent\",wire=\"peer\"} 8\n");
    ck_assert_uint_eq(figures.count, 1);
    ck_assert_uint_eq(figures.wires[0].bytes, 13);
}
END_TEST

START_TEST(a_daemon_that_does_not_tell_is_unknown)
{
    struct wire_figures figures;
    char name[WIRES_TEXT_BYTES];

    wire_figures_read(&figures, "\nstrait_slots 64\nstrait_wire_bytes_total 3\nstrait_wire_bytes_total{wire=\"\n");
    ck_assert_uint_eq(figures.count, 0);
    wire_figures_name(&figures, name);
    ck_assert_str_eq(name, "-");
}
END_TEST

START_TEST(differences_are_told_by_name)
{
    struct wire_figures before, now, used = {0};
    char name[WIRES_TEXT_BYTES];

    wire_figures_read(&before, text);
    wire_figures_read(&now, "\nstrait_wire_bytes_total{wire=\"pinned\"} 150\nstrait_wire_bytes_total{wire=\"nccl\"} 0\n"
                            "strait_wire_bytes_total{wire=\"peer\"} 9007199254740993\n");
    wire_figures_add(&used, &before, &now);
    wire_figures_name(&used, name);
    ck_assert_str_eq(name, "pinned");
    ck_assert_uint_eq(used.wires[0].bytes, 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_wires");
    TCase *wires = tcase_create("wires");

    tcase_add_test(wires, each_wire_is_read_by_name);
    tcase_add_test(wires, what_has_landed_is_not_counted_again);
    tcase_add_test(wires, a_daemon_that_does_not_tell_is_unknown);
    tcase_add_test(wires, differences_are_told_by_name);
    suite_add_tcase(suite, wires);
    return run_suite(suite);
}
