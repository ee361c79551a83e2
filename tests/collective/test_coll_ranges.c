/* NVTX ranges of the plugin, as a tool sees them that is linked with the process. */
#include <nvtx3/nvToolsExt.h>
#include <string.h>

#include "collective/cuda/ranges.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* ---- The tool ---------------------------------------------------------------------------------------------------- */

static struct {
    char domain[32], text[8][64];
    uint64_t payload[8];
    unsigned pushed, popped;
} seen;

static nvtxDomainHandle_t create(const char *name)
{
    snprintf(seen.domain, sizeof(seen.domain), "%s", name);
    return (nvtxDomainHandle_t)(void *)&seen;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    require(domain == (nvtxDomainHandle_t)(void *)&seen && attributes->messageType == NVTX_MESSAGE_TYPE_ASCII);
    snprintf(seen.text[seen.pushed], sizeof(seen.text[0]), "%s", attributes->message.ascii);
    seen.payload[seen.pushed++] = attributes->payload.ullValue;
    return 0;
}

static int pop(nvtxDomainHandle_t domain)
{
    require(domain == (nvtxDomainHandle_t)(void *)&seen && seen.popped < seen.pushed);
    seen.popped++;
    return 0;
}

static bool attached;

static int inject(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size = 0;
    if (!attached)
        return 0;
    require(callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 1);
    *(void **)table[NVTX_CBID_CORE2_DomainCreateA] = (void *)(uintptr_t)create;
    *(void **)table[NVTX_CBID_CORE2_DomainRangePushEx] = (void *)(uintptr_t)push;
    *(void **)table[NVTX_CBID_CORE2_DomainRangePop] = (void *)(uintptr_t)pop;
    return 1;
}

/* NVTX looks for this name in the process before it loads a tool. */
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = inject;

/* ---- The engine -------------------------------------------------------------------------------------------------- */

static unsigned calls[4], opened[4];

#define STAGE(name, number)                                      \
    static coll_result name(struct coll_op *ops, unsigned count) \
    {                                                            \
        (void)ops;                                               \
        calls[number] += count;                                  \
        opened[number] = seen.pushed - seen.popped;                \
        return number;                                           \
    }
STAGE(encode, 0)
STAGE(move, 1)
STAGE(decode, 2)
STAGE(pass, 3)

static const struct coll_engine_ops engine = {
    .version = COLL_ENGINE_VERSION, .encode = encode, .move = move, .decode = decode, .pass = pass};

static void run_all(void)
{
    struct coll_op ops[2] = {{.call = {.operation = COLL_ALL_GATHER, .type = COLL_BF16}, .wire = 1000},
                             {.call = {.operation = COLL_SEND, .type = COLL_FP32}, .wire = 234}};
    const struct coll_engine_ops *wrapped = ranges_around(&engine);
    ck_assert_uint_eq(wrapped->version, COLL_ENGINE_VERSION);
    ck_assert_int_eq(wrapped->encode(ops, 1), 0);
    ck_assert_int_eq(wrapped->move(ops, 2), 1);
    ck_assert_int_eq(wrapped->decode(&ops[1], 1), 2);
    ck_assert_int_eq(wrapped->pass(ops, 1), 3);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_uint_eq(calls[i], i == 1 ? 2 : 1);
}

TEST(a_tool_sees_each_stage)
{
    attached = true;
    run_all();
    ck_assert_str_eq(seen.domain, "strait");
    ck_assert_str_eq(seen.text[0], "encode all_gather bf16");
    ck_assert_str_eq(seen.text[1], "move 2 operations");
    ck_assert_str_eq(seen.text[2], "decode send fp32");
    ck_assert_str_eq(seen.text[3], "pass all_gather bf16");
    ck_assert_uint_eq(seen.payload[1], 1234);
    ck_assert_uint_eq(seen.popped, 4);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_uint_eq(opened[i], 1);
}

TEST(without_a_tool_nothing_is_said)
{
    run_all();
    ck_assert_uint_eq(seen.pushed + seen.popped, 0);
}

int main(void)
{
    return run_tests("coll_ranges", NULL, NULL);
}
