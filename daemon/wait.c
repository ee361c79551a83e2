/* Lets streams of a client's GPUs wait, by words that client, daemon and GPUs share. A stream waits until its word has
 * reached a value; the daemon raises the word when the layer is in place, and in any case with the verdict. The client
 * may raise it too, when it gives the verdict itself: a word is only ever raised, so the order of the two does not
 * matter. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utlist.h>

#include "daemon/session.h"
#include "internal/memfd.h"

#define ALL_LAYERS (-1)

/* A word to be raised. */
struct wait {
    int32_t layer;
    uint32_t word, value;
    struct wait *next; /* in expectation->waits */
};

/* ---- The words --------------------------------------------------------------------------------------------------- */

/* Can the file be mapped safely: at least `size` bytes of ordinary pages, which exist as long as the file, as it cannot
 * shrink? */
static bool is_usable(int fd, size_t size)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size >= 0 && (size_t)info.st_size >= size && !memfd_is_hugetlb(fd);
}

bool session_words(struct session *session, const struct message_words *message, const int *fds, uint32_t fd_count)
{
    size_t size = message->count * sizeof(session->words[0]);
    if (session->words != NULL || fd_count != 1 || !is_usable(fds[0], size))
        return false;
    void *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (words == MAP_FAILED)
        return false;
    session->words = words;
    session->word_count = message->count;
    return true;
}

void session_words_fini(struct session *session)
{
    if (session->words != NULL)
        munmap(session->words, session->word_count * sizeof(session->words[0]));
    session->words = NULL;
}

static void raise_word(struct session *session, uint32_t word, uint32_t value)
{
    uint32_t *at = &session->words[word], old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((int32_t)(value - old) > 0)
        if (__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
}

/* ---- Waits ------------------------------------------------------------------------------------------------------- */

static bool keep(struct expectation *e, const struct message_wait *message)
{
    struct wait *wait = request_charge(&e->request, sizeof(*wait)) ? malloc(sizeof(*wait)) : NULL;
    if (wait == NULL)
        return false;
    *wait = (struct wait){.layer = message->layer, .word = message->word, .value = message->value};
    LL_PREPEND(e->waits, wait);
    return true;
}

/* True: there is nothing left to wait for. */
static bool is_over(struct expectation *e, const struct message_wait *message)
{
    if (e->request.decided || (message->layer != ALL_LAYERS && coverage_layer_landed(e->coverage, message->layer)))
        return true;
    if (keep(e, message))
        return false;
    expectation_fail(e, STRAIT_REASON_NO_MEMORY, "too many waits");
    return true;
}

bool session_wait(struct session *session, const struct message_wait *message)
{
    struct request *request = session_find(session, message->transfer);
    bool fits = request == NULL || request->decided || (!request->is_offer && request->begun);
    if (!fits || message->word >= session->word_count)
        return false;
    if (request == NULL || request->is_offer || is_over((struct expectation *)request, message))
        raise_word(session, message->word, message->value);
    return true;
}

static void raise_matching(struct expectation *e, bool (*matches)(const struct wait *wait, const void *what),
                           const void *what)
{
    struct wait *wait, *next;
    LL_FOREACH_SAFE (e->waits, wait, next) {
        if (!matches(wait, what))
            continue;
        if (e->request.session != NULL)
            raise_word(e->request.session, wait->word, wait->value);
        LL_DELETE(e->waits, wait);
        free(wait);
    }
}

static bool is_of_layer(const struct wait *wait, const void *layer)
{
    return wait->layer == *(const int32_t *)layer;
}

static bool is_any(const struct wait *wait, const void *nothing)
{
    (void)wait;
    (void)nothing;
    return true;
}

void waits_layers(struct expectation *e, const int32_t *layers, uint32_t count)
{
    for (uint32_t i = 0; i < count && e->waits != NULL; i++)
        raise_matching(e, is_of_layer, &layers[i]);
}

void waits_decided(struct expectation *e)
{
    raise_matching(e, is_any, NULL);
}
