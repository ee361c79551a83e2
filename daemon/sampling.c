#include "daemon/sampling.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/memory/count.h"
#include "daemon/node.h"
#include "daemon/offer.h"
#include "internal/divisor.h"
#include "kernels/codebook_file.h"

#define TARGETS_MAX 4096u          /* more that are ready at once are passed over */
#define IDS_MAX     (1024u * 1024) /* ids of served pages that are kept for them */
#define IDS_OF_POOL (64u * 1024)   /* of them for the pages of a group that are served when the sample begins */
#define CLASSES_MAX 4096u          /* their counts fit a message */
#define TURN        16u            /* pages taken from a target before the next one's turn, */
#define LOOKS_MAX   4096u          /* and looked at for an order */
#define REST        9u             /* times the time that an order took */

/* Pages to be looked at: the parts of one segment, in an order that spreads any few of them over pages and layers. */
struct sampling_target {
    struct pool_ref *pool;
    struct sampled *sampled;
    struct offer *offer; /* NULL: the pages are served */
    struct segment segment;
    uint32_t first_id;      /* served pages: ids from here on, */
    uint32_t *ids;          /* or these */
    const uint64_t *served; /* borrowed */
    uint64_t at, step, left;
    struct sampling_target *prev, *next;             /* of the sample: the next to have its turn first */
    struct sampling_target *owner_prev, *owner_next; /* sampled->targets */
};

struct sampling {
    struct session *session;
    uint64_t number;
    uint32_t elements;
    uint64_t bytes_left;
    uint64_t began, until; /* loop's clock */
    uint64_t rests_until;  /* uv_hrtime */
    bool begun;            /* a tick has come: all that was ready at the beginning is known */
    bool full;             /* what is left of the budget is less than a page */
    bool over;             /* it ends when the order is done */
    struct sampling_target *targets;
    uint32_t target_count, ids_left;
    uint64_t targets_made;
    struct codebook_histogram *classes; /* in ascending order */
    uint32_t class_count, class_room;
    struct message_sampled answer;
};

bool sampling_may_see(const struct session *session, const struct pool_ref *pool)
{
    return session->admin || (pool->uid == session->uid && pool->tenant == session->tenant);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void remove_target(struct sampling *sampling, struct sampling_target *target)
{
    DL_DELETE(sampling->targets, target);
    DL_DELETE2(target->sampled->targets, target, owner_prev, owner_next);
    sampling->target_count--;
    free(target->ids);
    free(target);
}

static void drop(struct node *node)
{
    struct sampler *sampler = &node->sampler;
    struct sampling *sampling = sampler->sampling;
    struct sampling_target *target, *next;
    DL_FOREACH_SAFE (sampling->targets, target, next)
        remove_target(sampling, target);
    sampler->sampling = NULL;
    sampler->dropped = sampler->counting;
    free(sampling->classes);
    free(sampling);
}

static void refuse(struct session *session, enum strait_status status, const char *why)
{
    const struct message message = {.type = MESSAGE_SAMPLED,
                                    .sampled = {.status = (int32_t)status, .text = view_of(why, strlen(why))}};
    session_send(session, &message);
}

void sampling_end(struct node *node, const char *why)
{
    if (node->sampler.sampling == NULL)
        return;
    refuse(node->sampler.sampling->session, STRAIT_ERR_AGAIN, why);
    drop(node);
}

void sampling_session_end(struct session *session)
{
    const struct sampling *sampling = session->node->sampler.sampling;
    if (sampling != NULL && sampling->session == session)
        drop(session->node);
}

void sampling_fini(struct node *node)
{
    count_destroy(node->sampler.count);
    node->sampler.count = NULL;
}

/* The counts as a partial file, malloc'ed; none without classes. False: no memory. */
static bool write_counts(const struct sampling *sampling, struct view *counts)
{
    const size_t size = codebook_partial_serialized_size(sampling->classes, sampling->class_count);
    uint8_t *bytes = NULL;
    if (sampling->class_count == 0)
        return true;
    bytes = malloc(size);
    if (bytes == NULL ||
        codebook_partial_serialize(sampling->classes, sampling->class_count, bytes, size) != STRAIT_OK) {
        free(bytes);
        return false;
    }
    *counts = view_of(bytes, size);
    return true;
}

static void finish(struct node *node)
{
    struct sampling *sampling = node->sampler.sampling;
    struct session *session = sampling->session;
    struct message message = {.type = MESSAGE_SAMPLED, .sampled = sampling->answer};
    message.sampled.milliseconds = (uint32_t)(uv_now(node->loop) - sampling->began);
    if (write_counts(sampling, &message.sampled.counts))
        session_send(session, &message);
    else
        refuse(session, STRAIT_ERR_NO_MEMORY, "out of memory");
    log_limited(node->log, LOG_OF_CLIENTS, LOG_INFO,
                "msg=sampled pid=%u uid=%u pools=%u bytes=%" PRIu64 " classes=%u ms=%u", session->pid, session->uid,
                message.sampled.pools, message.sampled.bytes, sampling->class_count, message.sampled.milliseconds);
    free((void *)message.sampled.counts.data);
    drop(node);
}

/* ---- What was counted -------------------------------------------------------------------------------------------- */

/* NULL: no memory, or too many classes. */
static struct codebook_histogram *find_class(struct sampling *sampling, struct strait_class class)
{
    uint32_t low = 0, high = sampling->class_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (codebook_class_compare(sampling->classes[middle].class, class) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < sampling->class_count && codebook_class_compare(sampling->classes[low].class, class) == 0)
        return &sampling->classes[low];
    if (sampling->class_count == CLASSES_MAX)
        return NULL;
    if (sampling->class_count == sampling->class_room) {
        const uint32_t room = sampling->class_room + 64;
        struct codebook_histogram *classes = realloc(sampling->classes, room * sizeof(*classes));
        if (classes == NULL)
            return NULL;
        sampling->classes = classes;
        sampling->class_room = room;
    }
    struct codebook_histogram *at = &sampling->classes[low];
    memmove(at + 1, at, (sampling->class_count++ - low) * sizeof(*at));
    *at = (struct codebook_histogram){.class = class};
    return at;
}

static void take_counts(struct sampling *sampling, const struct count *count)
{
    uint32_t class_count;
    const struct class_count *classes = count_results(count, &class_count);
    uint64_t counted = 0;
    for (uint32_t c = 0; c < class_count; c++) {
        struct codebook_histogram *sum = classes[c].bytes > 0 ? find_class(sampling, classes[c].class) : NULL;
        for (uint32_t e = 0; sum != NULL && e < 256; e++)
            sum->counts[e] += classes[c].counts[e];
        counted += classes[c].bytes;
        if (sum != NULL)
            sampling->answer.bytes += classes[c].bytes;
        else
            sampling->answer.other_bytes += classes[c].bytes;
    }
    if (counted < count_size(count)) { /* it was stopped */
        sampling->bytes_left += count_size(count) - counted;
        sampling->full = false;
    }
}

/* ---- Orders ------------------------------------------------------------------------------------------------------ */

static bool has_bit(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> at % 64 & 1) != 0;
}

/* The page's id at this place in the segment. False: it is not, or no longer, to be looked at. */
static bool find_page(const struct sampling_target *target, const struct pool_group *group, uint32_t index,
                      uint32_t *id)
{
    if (target->offer != NULL) {
        const struct segment *segment = &target->segment;
        const uint32_t *ids = page_set_ids(&target->offer->request.pages, segment->group, segment->first + index, 1);
        if (ids != NULL)
            *id = *ids;
        return ids != NULL;
    }
    *id = target->ids != NULL ? target->ids[index] : target->first_id + index;
    return has_bit(target->served, *id) && !has_bit(group->expected, *id);
}

static uint64_t region_bytes(const struct strait_region *region)
{
    return (uint64_t)region->rows * region->row_bytes;
}

/* Adds the target's next page to the order. False: the order has no room, or the budget. */
static bool add_page(struct sampling *sampling, struct sampler *sampler, struct sampling_target *target)
{
    const struct segment *segment = &target->segment;
    const struct pool_group *group = &target->pool->pool->groups[segment->group];
    const uint32_t r = segment->region_first + (uint32_t)(target->at % segment->region_count);
    const struct strait_region *region = &group->regions[r];
    uint32_t id;
    if (find_page(target, group, (uint32_t)(target->at / segment->region_count), &id)) {
        const struct strait_class class = {.role = (enum strait_role)group->roles[r], .layer = group->layers[r]};
        if (count_size(sampler->count) + region_bytes(region) > sampling->bytes_left) {
            sampling->full = true;
            return false;
        }
        if (!count_add(sampler->count, class, group->element, region, id))
            return false;
        target->sampled->order = sampler->order;
    }
    target->at = (target->at + target->step) % ((uint64_t)segment->region_count * segment->count);
    target->left--;
    return true;
}

static void fill(struct sampling *sampling, struct sampler *sampler)
{
    for (uint32_t looks = 0; sampling->targets != NULL && looks < LOOKS_MAX;) {
        struct sampling_target *target = sampling->targets;
        for (uint32_t i = 0; i < TURN && target->left > 0; i++, looks++)
            if (!add_page(sampling, sampler, target))
                return;
        if (target->left == 0) {
            remove_target(sampling, target);
        } else {
            DL_DELETE(sampling->targets, target);
            DL_APPEND(sampling->targets, target);
        }
    }
}

static void on_counted(void *owner, struct count *count)
{
    struct node *node = owner;
    struct sampler *sampler = &node->sampler;
    struct sampling *sampling = sampler->dropped ? NULL : sampler->sampling;
    sampler->counting = sampler->dropped = false;
    if (sampling == NULL)
        return;
    take_counts(sampling, count);
    sampling->rests_until = uv_hrtime() + REST * count_nanoseconds(count);
    if (sampling->over || sampling->full || sampling->bytes_left == 0)
        finish(node);
}

/* Begins an order, unless one is with a worker, it is too early for the next, or there is nothing to look at. */
static void begin_order(struct node *node)
{
    struct sampler *sampler = &node->sampler;
    struct sampling *sampling = sampler->sampling;
    if (sampler->counting || !sampling->begun || sampling->over || sampling->targets == NULL ||
        uv_hrtime() < sampling->rests_until)
        return;
    sampler->order++;
    count_clear(sampler->count);
    fill(sampling, sampler);
    const uint64_t bytes = count_size(sampler->count);
    if (bytes > 0 && count_start(sampler->count, node->jobs, on_counted, node)) {
        sampler->counting = true;
        sampling->bytes_left -= bytes;
    } else if (bytes > 0) { /* its pages are passed over */
        count_clear(sampler->count);
    }
    if (sampling->full && !sampler->counting)
        finish(node);
}

void sampling_stop(struct node *node, const struct sampled *sampled)
{
    const struct sampler *sampler = &node->sampler;
    if (sampler->counting && sampled->order == sampler->order)
        count_stop(sampler->count);
}

void sampling_over(struct node *node, struct sampled *sampled)
{
    while (sampled->targets != NULL)
        remove_target(node->sampler.sampling, sampled->targets);
    sampling_stop(node, sampled);
}

/* ---- Targets ----------------------------------------------------------------------------------------------------- */

/* A step that goes once through all `count` numbers, and lands far from where it was lately: near the golden ratio. */
static uint64_t step_of(uint64_t count)
{
    uint64_t step = count / 1000 * 618 + count % 1000 * 618 / 1000;
    step += step == 0;
    while (common_divisor(step, count) != 1)
        step++;
    return step;
}

/* Counts ready pages of a pool that the client may see. False: they are not looked at. */
static bool take_ready(struct sampling *sampling, struct pool_ref *pool, const struct segment *segment)
{
    const struct pool_group *group = &pool->pool->groups[segment->group];
    const uint64_t bytes = segment_bytes(segment, &pool->pool->sizes);
    const bool counted = count_takes(group->element) && (sampling->elements >> group->element & 1) != 0;
    uint64_t *sum = group->device >= 0 ? &sampling->answer.device_bytes
                    : !counted         ? &sampling->answer.other_bytes
                                       : &sampling->answer.ready_bytes;
    *sum += bytes;
    if (sum != &sampling->answer.ready_bytes || bytes == 0)
        return false;
    sampling->answer.pools += pool->sampled_by != sampling->number;
    pool->sampled_by = sampling->number;
    return sampling->target_count < TARGETS_MAX;
}

/* NULL: no memory. */
static struct sampling_target *add_target(struct sampling *sampling, struct pool_ref *pool, struct sampled *sampled,
                                          const struct segment *segment)
{
    struct sampling_target *target = calloc(1, sizeof(*target));
    if (target == NULL)
        return NULL;
    target->pool = pool;
    target->sampled = sampled;
    target->segment = *segment;
    target->left = (uint64_t)segment->region_count * segment->count;
    target->step = step_of(target->left);
    target->at = sampling->targets_made++ * UINT64_C(0x9e3779b97f4a7c15) % target->left; /* each begins elsewhere */
    DL_APPEND(sampling->targets, target);
    DL_APPEND2(sampled->targets, target, owner_prev, owner_next);
    sampling->target_count++;
    return target;
}

/* The sample that is being taken, if its client may see the pool; NULL. */
static struct sampling *sampling_of(const struct pool_ref *pool)
{
    struct sampling *sampling = pool->node->sampler.sampling;
    return sampling != NULL && sampling_may_see(sampling->session, pool) ? sampling : NULL;
}

void sampling_ready(struct offer *offer, uint32_t from)
{
    struct pool_ref *pool = offer->request.pool;
    struct sampling *sampling = sampling_of(pool);
    if (sampling == NULL)
        return;
    for (uint32_t i = from; i < offer->ready_count; i++)
        if (take_ready(sampling, pool, &offer->ready[i])) {
            struct sampling_target *target = add_target(sampling, pool, &offer->sampled, &offer->ready[i]);
            if (target != NULL)
                target->offer = offer;
        }
    begin_order(pool->node);
}

static struct segment all_regions(const struct pool_ref *pool, uint32_t group, uint32_t count)
{
    return (struct segment){.group = group, .region_count = pool->pool->groups[group].region_count, .count = count};
}

/* Ids, which it takes, or (NULL) `count` from first_id on. */
static void add_served(struct pool_ref *pool, const uint64_t *served, const struct wire_page_list *list, uint32_t *ids)
{
    struct sampling *sampling = pool->node->sampler.sampling;
    const struct segment segment = all_regions(pool, list->group, list->count);
    struct sampling_target *target = list->count > 0 ? add_target(sampling, pool, &pool->sampled, &segment) : NULL;
    if (target == NULL) {
        free(ids);
        return;
    }
    target->served = served;
    target->first_id = list->first_id;
    target->ids = ids;
    sampling->ids_left -= ids != NULL ? list->count : 0;
}

void sampling_served(struct pool_ref *pool, const uint64_t *served, const struct wire_page_list *list)
{
    struct sampling *sampling = sampling_of(pool);
    if (sampling == NULL || list->count == 0)
        return;
    const struct segment segment = all_regions(pool, list->group, list->count);
    struct wire_page_list taken = *list;
    uint32_t *ids = NULL;
    if (!take_ready(sampling, pool, &segment))
        return;
    if (list->ids != NULL) {
        taken.count = list->count < sampling->ids_left ? list->count : sampling->ids_left;
        ids = malloc(taken.count * sizeof(*ids) + 1);
        if (ids == NULL)
            return;
        memcpy(ids, list->ids, taken.count * sizeof(*ids));
    }
    add_served(pool, served, &taken, ids);
    begin_order(pool->node);
}

void sampling_served_all(struct pool_ref *pool, const uint64_t *served, uint32_t group)
{
    struct sampling *sampling = sampling_of(pool);
    const uint32_t page_count = pool->pool->groups[group].page_count;
    struct wire_page_list list = {.group = group};
    uint32_t count = 0, seen = 0;
    if (sampling == NULL)
        return;
    for (uint32_t word = 0; word < (page_count + 63) / 64; word++)
        count += (uint32_t)__builtin_popcountll(served[word]);
    const struct segment segment = all_regions(pool, group, count);
    uint32_t room = sampling->ids_left < IDS_OF_POOL ? sampling->ids_left : IDS_OF_POOL;
    room = count < room ? count : room;
    if (room == 0 || !take_ready(sampling, pool, &segment))
        return;
    uint32_t *ids = malloc(room * sizeof(*ids));
    if (ids == NULL)
        return;
    for (uint32_t id = 0; id < page_count; id++) /* if there are too many, some of all */
        if (has_bit(served, id) && (uint64_t)seen++ * room / count >= list.count && list.count < room)
            ids[list.count++] = id;
    add_served(pool, served, &list, ids);
    begin_order(pool->node);
}

/* ---- The beginning ----------------------------------------------------------------------------------------------- */

/* Why the sample is refused; NULL: it is not. */
static const char *why_not(const struct session *session)
{
    struct node *node = session->node;
    const struct sampling *other = node->sampler.sampling;
    if (node->draining)
        return node->handed_over ? "another daemon takes over" : "the daemon is stopping";
    if (session->tenant->removed)
        return session_no_tenant;
    if (other != NULL && (!session->admin || other->session->admin))
        return "another sample is being taken: try again later";
    if (node->sampler.count == NULL && (node->sampler.count = count_create()) == NULL)
        return "out of memory";
    return NULL;
}

bool sampling_begin(struct session *session, const struct message_sample *message)
{
    struct node *node = session->node;
    const char *why = why_not(session);
    struct sampling *sampling = why == NULL ? calloc(1, sizeof(*sampling)) : NULL;
    struct offer *offer;
    if (sampling == NULL) {
        refuse(session, STRAIT_ERR_AGAIN, why != NULL ? why : "out of memory");
        return false;
    }
    sampling_end(node, "ended, because the daemon's own user takes a sample");
    sampling->session = session;
    sampling->number = ++node->sampler.samplings;
    sampling->elements = message->elements;
    sampling->bytes_left = message->bytes;
    sampling->ids_left = IDS_MAX;
    sampling->began = uv_now(node->loop);
    sampling->until = sampling->began + message->milliseconds;
    node->sampler.sampling = sampling;
    DL_FOREACH (node->exchange.offers, offer)
        if (!offer->request.decided)
            sampling_ready(offer, 0);
    return true;
}

void sampling_tick(struct node *node)
{
    struct sampling *sampling = node->sampler.sampling;
    if (sampling == NULL)
        return;
    sampling->begun = true;
    sampling->over = uv_now(node->loop) >= sampling->until;
    if (sampling->over && (!node->sampler.counting || node->sampler.dropped))
        finish(node);
    else
        begin_order(node);
}
