/* Compares api.h with NCCL's own headers: a difference does not compile. It adds nothing to the
 * library. In 2.28 one header is C++ only, that of ncclGinBarrierCreateRequirement. */
#include <nccl.h>
#include <nccl_device/ll_a2a.h>
#include <nccl_device/lsa_barrier.h>

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

/* A redeclaration: a different return type or parameter is an error. */
#define X(returns, name, parameters, arguments, way, ...) COLL_TYPE_##returns nccl##name parameters;
COLL_API(X)
#undef X

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
