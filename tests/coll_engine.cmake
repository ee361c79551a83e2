# The engine of compressed collectives behind libstrait-coll, without a GPU: GPUs and NCCL are fakes that move bytes.
add_library(strait_coll_harness STATIC coll_engine/harness.c coll_engine/lazy.c coll_engine/maker.c
    coll_engine/values.c)
target_link_libraries(strait_coll_harness PUBLIC strait_options strait_test_support strait_coll_reduce
    strait-fake-gpu PkgConfig::CHECK Threads::Threads ${CMAKE_DL_LIBS})

# strait_coll_test(NAME [TIMEOUT seconds]): coll_engine/test_NAME.c, linked with the library before NCCL, as programs are.
function(strait_coll_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "" ${ARGN})
    add_executable(test_coll_${name} coll_engine/test_${name}.c)
    target_link_libraries(test_coll_${name} PRIVATE strait_coll_harness -Wl,--no-as-needed strait-coll-tested
        strait-coll-fake-nccl)
    add_dependencies(test_coll_${name} strait-coll-fake-plugin)
    strait_add_test(coll_${name} COMMAND test_coll_${name} LABELS collective TIMEOUT ${ARG_TIMEOUT})
endfunction()

strait_coll_test(operations TIMEOUT 240)

# The same, preloaded under a program that knows of NCCL alone. What runs is the same: once under a sanitizer is enough.
add_executable(test_coll_preloaded coll_engine/test_operations.c)
target_link_libraries(test_coll_preloaded PRIVATE strait_coll_harness strait-coll-fake-nccl)
if(NOT CMAKE_CROSSCOMPILING AND NOT STRAIT_SANITIZE) # an emulator is in the way of what is preloaded
    strait_add_test(coll_preloaded COMMAND test_coll_preloaded LABELS collective TIMEOUT 240
        ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:strait-coll-tested>")
    add_dependencies(test_coll_preloaded strait-coll-tested strait-coll-fake-plugin)
endif()
strait_coll_test(groups TIMEOUT 240)
strait_coll_test(order TIMEOUT 240)
strait_coll_test(sums TIMEOUT 240)
strait_coll_test(overflow TIMEOUT 240)
target_link_libraries(test_coll_overflow PRIVATE strait_coll_engine) # levels: what is expected
strait_coll_test(rings TIMEOUT 240)
strait_coll_test(failures TIMEOUT 240)
strait_coll_test(choices TIMEOUT 240)
target_link_libraries(test_coll_choices PRIVATE strait_coll_settings)
strait_coll_test(revoke TIMEOUT 240)
strait_coll_test(abort TIMEOUT 240)
strait_coll_test(late TIMEOUT 240)
strait_coll_test(late_end TIMEOUT 240)
strait_coll_test(memory TIMEOUT 240)
strait_coll_test(absent TIMEOUT 240)
strait_coll_test(places TIMEOUT 240)
strait_coll_test(silent TIMEOUT 240)
strait_coll_test(watch TIMEOUT 240)
target_sources(test_coll_watch PRIVATE ${PROJECT_SOURCE_DIR}/collective/engine/liveness.c) # the peer's
strait_test(coll_parts USES coll_engine LABELS collective)
strait_test(coll_share USES coll_engine LABELS collective)
strait_test(coll_overflow_tcp USES coll_engine LABELS collective)
strait_test(coll_link USES coll_engine LABELS collective TIMEOUT 120)
strait_coll_test(stress TIMEOUT 240)

# Sanitizers make the longest several times as long: there those are left out whose threads meet in others too.
set(hosts_tests operations groups order rings failures stress)
set(neighbours_tried 1 2)
if(STRAIT_SANITIZE)
    set(hosts_tests groups rings stress)
    set(neighbours_tried 2)
endif()
if(STRAIT_SANITIZE MATCHES thread)
    set(hosts_tests groups stress)
endif()
# Ranks on hosts of their own, or two on each, with TCP between them. Levels change later then than test_overflow counts.
strait_coll_test(hosts TIMEOUT 240)
strait_coll_test(spaces TIMEOUT 240)
foreach(test absent late late_end)
    strait_add_test(coll_${test}_hosts COMMAND test_coll_${test} LABELS collective TIMEOUT 240
        ENVIRONMENT "STRAIT_TEST_HOSTS=1;NCCL_SOCKET_IFNAME=lo")
endforeach()
foreach(neighbours ${neighbours_tried})
    foreach(test ${hosts_tests})
        strait_add_test(coll_${test}_hosts${neighbours} COMMAND test_coll_${test} LABELS collective TIMEOUT 240
            ENVIRONMENT "STRAIT_TEST_HOSTS=${neighbours};NCCL_SOCKET_IFNAME=lo")
    endforeach()
endforeach()
