/* Compares api.h with NCCL's own headers, from 2.28 on: a difference does not compile. It adds nothing to the
 * library. What a header lacks, or has for C++ only, is declared by api.h alone. */
#include <nccl.h>
#include <nccl_device/ll_a2a.h>
#include <nccl_device/lsa_barrier.h>
#if __has_include(<nccl_device/host.h>)
#include <nccl_device/host.h>
#endif
#include <stddef.h>
#include <stdint.h>

#undef ncclResetDebugInit /* a function on Linux, whatever some headers say */

#define COLL_TYPES_OF_NCCL
#include "collective/api.h"

typedef ncclUniqueId coll_id;
typedef ncclTeam_t coll_team;
typedef ncclComm_t coll_comm;
typedef cudaStream_t coll_stream;
typedef ncclWindow_t coll_window;
typedef ncclResult_t coll_result;
typedef ncclDataType_t coll_type;
typedef ncclRedOp_t coll_reduction;
typedef ncclScalarResidence_t coll_residence;
typedef ncclConfig_t coll_config;
typedef ncclSimInfo_t coll_simulation;
typedef ncclDevCommRequirements_t coll_dev_requirements;
typedef ncclDevComm_t coll_dev_comm;
typedef ncclDevResourceRequirements_t coll_dev_resources;
typedef struct ncclGinBarrierHandle coll_gin_barrier;
typedef ncclLLA2AHandle_t coll_ll_a2a;
typedef ncclLsaBarrierHandle_t coll_lsa_barrier;
typedef struct ncclGinInboxA2AHandle coll_gin_inbox;
typedef struct ncclGinOutboxHandle coll_gin_outbox;
typedef ncclMultimemHandle_t coll_multimem;
#if NCCL_VERSION_CODE >= 22907
typedef ncclCommMemStat_t coll_statistic;
typedef ncclCommProperties_t coll_properties;
typedef ncclWaitSignalDesc_t coll_signal;
#else
typedef int coll_statistic;
typedef void coll_properties, coll_signal;
#endif
#if NCCL_VERSION_CODE >= 23007
typedef ncclParamHandle_t coll_param;
#else
typedef void *coll_param;
#endif
#if NCCL_VERSION_CODE >= 23102
typedef ncclCollConfig_t coll_call_config;
typedef ncclCftTeamMode_t coll_cft_mode;
typedef ncclCftLeId coll_cft_id;
#else
typedef void coll_call_config;
typedef int coll_cft_mode;
typedef uint32_t coll_cft_id;
#endif
#if NCCL_VERSION_CODE >= 23203
typedef ncclEncryptionConfig_t coll_encryption;
#else
typedef void coll_encryption;
#endif

/* A redeclaration: a different return type or parameter is an error. */
#define X(returns, name, parameters, arguments, way, ...) COLL_TYPE_##returns nccl##name parameters;
COLL_API(X)
#undef X

#if NCCL_VERSION_CODE >= 23203
_Static_assert(offsetof(ncclCollConfig_t, magic) == COLL_CONFIG_MAGIC_AT &&
                   offsetof(ncclCollConfig_t, ext) == COLL_CONFIG_EXTENSIONS_AT &&
                   offsetof(ncclCollConfig_t, algSelection) == COLL_CONFIG_SELECTION_AT &&
                   offsetof(ncclCollConfig_t, CTAPolicy) == COLL_CONFIG_POLICY_AT &&
                   offsetof(ncclCollConfig_t, launchCompletionEvent) == COLL_CONFIG_LAUNCHED_AT &&
                   offsetof(ncclEncryptionConfig_t, mode) == COLL_ENCRYPTION_MODE_AT,
               "fields of configs");
_Static_assert(ncclStatGpuMemSuspend == 0 && ncclStatGpuMemSuspended == 1 && ncclStatGpuMemPersist == 2 &&
                   ncclStatGpuMemTotal == 3 && NCCL_ENCRYPTION_MODE_NONE == 0 && NCCL_SUSPEND_MEM == 1 &&
                   NCCL_API_MAGIC == 0xcafebeef,
               "flags and statistics");
#endif
_Static_assert(sizeof(ncclUniqueId) == 128, "COLL_ID_BYTES");
_Static_assert(sizeof(ncclTeam_t) == 3 * sizeof(int), "coll_team");
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
                   sizeof(ncclRedOp_t) == sizeof(int) && sizeof(ncclScalarResidence_t) == sizeof(int),
               "enums are ints");
_Static_assert(ncclSuccess == 0 && ncclSystemError == 2 && ncclInvalidUsage == 5 && ncclInProgress == 7, "results");
_Static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 &&
                   ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9 &&
                   ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11,
               "COLL_TYPE_MAP in api.h");
