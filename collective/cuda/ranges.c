#include "collective/cuda/ranges.h"

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

static const struct coll_engine_ops *plain;
static struct coll_engine_ops wrapped;
static nvtxDomainHandle_t domain; /* NULL: no tool listens */

static const char *const operations[] = {
#define X(name, text) text,
    COLL_OPERATION_MAP(X)
#undef X
};

static const char *const types[] = {
#define X(name, value, bytes, text) text,
    COLL_TYPE_MAP(X)
#undef X
};

/* A range is of the calling thread; its payload is the bytes that all of its ops hand to NCCL. Types of ops are known.
 */
static void begin(const char *stage, const struct coll_op *ops, unsigned count)
{
    char text[64];
    uint64_t wire = 0;
    for (unsigned i = 0; i < count; i++)
        wire += ops[i].wire;
    if (count == 1)
        snprintf(text, sizeof(text), "%s %s %s", stage, operations[ops[0].call.operation], types[ops[0].call.type]);
    else
        snprintf(text, sizeof(text), "%s %u operations", stage, count);
    const nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                              .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                              .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                              .payload.ullValue = wire,
                                              .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                              .message.ascii = text};
    (void)nvtxDomainRangePushEx(domain, &attributes);
}

#define STAGE(name, text)                                        \
    static coll_result name(struct coll_op *ops, unsigned count) \
    {                                                            \
        if (domain == NULL)                                      \
            return plain->name(ops, count);                      \
        begin(text, ops, count);                                 \
        const coll_result result = plain->name(ops, count);      \
        (void)nvtxDomainRangePop(domain);                        \
        return result;                                           \
    }
STAGE(encode, "encode")
STAGE(move, "move")
STAGE(decode, "decode")
STAGE(pass, "pass")
#undef STAGE

const struct coll_engine_ops *ranges_around(const struct coll_engine_ops *engine)
{
    plain = engine;
    wrapped = *engine;
    domain = nvtxDomainCreateA("strait");
    wrapped.encode = encode;
    wrapped.move = move;
    wrapped.decode = decode;
    wrapped.pass = pass;
    return &wrapped;
}

#else

const struct coll_engine_ops *ranges_around(const struct coll_engine_ops *engine)
{
    return engine;
}

#endif
