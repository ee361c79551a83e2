# The whole service: nodes in threads, clients of theirs, over every transport that this build has.
add_library(strait_node_harness STATIC node_harness.c node_pool.c node_flow.c)
target_link_libraries(strait_node_harness PUBLIC strait_node strait-client strait_test_support PkgConfig::CHECK
    PkgConfig::CJSON)

add_library(strait_far_harness STATIC far_harness.c)
target_link_libraries(strait_far_harness PUBLIC strait_node_harness ${CMAKE_DL_LIBS})

# In place of the plugin that knows GPUs: found before it, by the same name.
add_library(strait-fake-device SHARED fake_device.c)
target_link_libraries(strait-fake-device PRIVATE strait_options Threads::Threads)
set_target_properties(strait-fake-device PROPERTIES OUTPUT_NAME strait-node-cuda VERSION ${PROJECT_VERSION} SOVERSION 0
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake)

strait_test(receive USES node LABELS unit)

set(gpu_tests node_device node_device_end node_device_fails node_device_ready node_device_stream node_reach node_rogue node_rogue_reach
    node_rogue_source node_rogue_open node_rogue_request)
set(node_tests node_basic node_match node_stream node_end node_coding node_limits node_hostile node_embedded)
foreach(name ${node_tests})
    strait_test(${name} USES node_harness LABELS service TIMEOUT 60)
endforeach()
foreach(name ${gpu_tests})
    strait_test(${name} USES far_harness LABELS service TIMEOUT 60)
endforeach()
if(STRAIT_HAVE_UCX) # it carries what goes with NCCL's chunks
    strait_test(node_nccl USES far_harness fake_nccl LABELS service TIMEOUT 120)
    strait_test(node_ucx_cuda USES far_harness fake_nccl LABELS service TIMEOUT 120)
    list(APPEND gpu_tests node_nccl node_ucx_cuda)
endif()
list(APPEND node_tests ${gpu_tests})
target_sources(test_node_hostile PRIVATE raw_client.c message_samples.c)
add_dependencies(test_node_embedded strait-node) # found by its name
foreach(name ${gpu_tests})
    add_dependencies(test_${name} strait-node strait-fake-device)
endforeach()
target_compile_definitions(test_node_device_fails PRIVATE STRAITD="$<TARGET_FILE:straitd>")
add_dependencies(test_node_device_fails straitd)
if(TARGET strait)
    target_compile_definitions(test_node_device_fails PRIVATE STRAIT="$<TARGET_FILE:strait>")
    add_dependencies(test_node_device_fails strait)
endif()
foreach(name node_rogue node_rogue_reach node_rogue_source node_rogue_open node_rogue_request)
    target_sources(test_${name} PRIVATE rogue.c)
endforeach()
target_sources(test_node_rogue PRIVATE rogue_sink.c)
target_sources(test_node_rogue_request PRIVATE rogue_sink.c)
target_sources(test_node_rogue_source PRIVATE rogue_source.c)
target_sources(test_node_rogue_open PRIVATE rogue_source.c)
set_property(TEST ${node_tests} APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0"
    "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp:print_suppressions=0" "UCX_MEM_EVENTS=no"
    "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-fake-device>:$<TARGET_FILE_DIR:strait-node>")

strait_add_test(straitd COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/straitd.sh $<TARGET_FILE:straitd>
    ${CMAKE_CURRENT_BINARY_DIR}/scratch/straitd LABELS cli)
set_property(TEST straitd APPEND PROPERTY ENVIRONMENT "HAS_UCX=$<BOOL:${STRAIT_HAVE_UCX}>")
strait_add_test(examples COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/examples.sh $<TARGET_FILE:straitd>
    $<TARGET_FILE:example-pull> $<TARGET_FILE:example-push> LABELS cli)
set_property(TEST straitd examples APPEND PROPERTY ENVIRONMENT "UCX_MEM_EVENTS=no"
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0")
