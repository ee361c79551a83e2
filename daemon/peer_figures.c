#include "daemon/peer_figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

void peer_figures_init(struct peer_figures_table *table)
{
    *table = (struct peer_figures_table){.others = {.address = "other"}};
}

void peer_figures_fini(struct peer_figures_table *table)
{
    struct peer_figures *figures, *next;
    DL_FOREACH_SAFE (table->list, figures, next) {
        DL_DELETE(table->list, figures);
        free(figures);
    }
    table->count = 0;
}

static struct peer_figures *find(const struct peer_figures_table *table, const char *address)
{
    struct peer_figures *figures;
    DL_FOREACH (table->list, figures)
        if (strcmp(figures->address, address) == 0)
            return figures;
    return NULL;
}

static void add_up(struct peer_figures *sum, const struct peer_figures *from)
{
    sum->raw_bytes_sent += from->raw_bytes_sent;
    sum->wire_bytes_sent += from->wire_bytes_sent;
    sum->chunks_sent += from->chunks_sent;
    sum->raw_bytes_landed += from->raw_bytes_landed;
    sum->wire_bytes_landed += from->wire_bytes_landed;
    sum->chunks_landed += from->chunks_landed;
    for (unsigned w = 0; w < WIRE_NONE; w++)
        sum->wires[w] += from->wires[w];
    sum->ucx_gpus += from->ucx_gpus;
    for (unsigned f = 0; f < PEER_FAILURES; f++)
        sum->failures[f] += from->failures[f];
}

/* False: all are in use. */
static bool give_up_oldest(struct peer_figures_table *table)
{
    struct peer_figures *figures, *oldest = NULL;
    DL_FOREACH (table->list, figures)
        if (figures->uses == 0 && (oldest == NULL || figures->used < oldest->used))
            oldest = figures;
    if (oldest == NULL)
        return false;
    add_up(&table->others, oldest);
    DL_DELETE(table->list, oldest);
    free(oldest);
    table->count--;
    return true;
}

/* NULL: there is no room, or no memory. */
static struct peer_figures *add_row(struct peer_figures_table *table, const char *address)
{
    if (table->count == PEER_FIGURES_MAX && !give_up_oldest(table))
        return NULL;
    struct peer_figures *figures = calloc(1, sizeof(*figures));
    if (figures == NULL)
        return NULL;
    snprintf(figures->address, sizeof(figures->address), "%s", address);
    DL_APPEND(table->list, figures);
    table->count++;
    return figures;
}

struct peer_figures *peer_figures_take(struct peer_figures_table *table, const char *address)
{
    struct peer_figures *figures = find(table, address);
    if (figures == NULL)
        figures = add_row(table, address);
    if (figures == NULL)
        figures = &table->others;
    figures->uses++;
    figures->used = ++table->turn;
    return figures;
}

void peer_figures_leave(struct peer_figures *figures)
{
    figures->uses--;
}

void peer_figures_sent(struct peer_figures *figures, struct chunk_path path, uint64_t bytes, uint64_t raw_bytes)
{
    if (figures == NULL)
        return;
    figures->raw_bytes_sent += raw_bytes;
    figures->wire_bytes_sent += bytes;
    figures->chunks_sent++;
    *(path.gpus && path.wire == WIRE_UCX ? &figures->ucx_gpus : &figures->wires[path.wire]) += bytes;
}

void peer_figures_arrived(struct peer_figures *figures, uint64_t bytes)
{
    if (figures != NULL)
        figures->wire_bytes_landed += bytes;
}

void peer_figures_landed(struct peer_figures *figures, uint64_t raw_bytes)
{
    if (figures == NULL)
        return;
    figures->raw_bytes_landed += raw_bytes;
    figures->chunks_landed++;
}

void peer_figures_failed(struct peer_figures *figures, enum peer_failure what)
{
    if (figures != NULL)
        figures->failures[what]++;
}

void peer_figures_verdict(struct peer_figures *figures, enum strait_reason reason)
{
    if (reason != STRAIT_REASON_NONE && reason != STRAIT_REASON_ABORTED && reason != STRAIT_REASON_PEER_ABORT)
        peer_figures_failed(figures, PEER_FAILED_TRANSFER);
}

void peer_figures_each(struct peer_figures_table *table, void (*f)(void *arg, struct peer_figures *figures), void *arg)
{
    struct peer_figures *figures;
    DL_FOREACH (table->list, figures)
        f(arg, figures);
    f(arg, &table->others);
}
