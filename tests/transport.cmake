# Tests of transport/: one suite over every kind, then what is particular to one. UCX's memory hooks do not get on with the
# thread sanitizer, and it leaks a little.
add_library(strait_transport_sides STATIC transport_sides.c)
target_link_libraries(strait_transport_sides PUBLIC strait_transport PkgConfig::CHECK)

add_library(strait_fake_nccl STATIC fake_nccl.c)
target_link_libraries(strait_fake_nccl PUBLIC strait_transport strait_test_support)

# The same in place of the plugin that knows NCCL: found before it, by the same name.
add_library(strait-fake-nccl SHARED fake_nccl.c fake_nccl_plugin.c)
target_link_libraries(strait-fake-nccl PRIVATE strait_test_support)
set_target_properties(strait-fake-nccl PROPERTIES OUTPUT_NAME strait-transport-nccl VERSION ${PROJECT_VERSION} SOVERSION 0
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nccl)

strait_test(transport USES transport_sides fake_nccl transport LABELS unit TIMEOUT 120)
strait_test(shm USES transport transport_sides LABELS unit TIMEOUT 60)
strait_test(loopback USES transport transport_sides LABELS unit TIMEOUT 60)
strait_test(nccl USES transport_sides fake_nccl transport LABELS unit TIMEOUT 60)
strait_test(nccl_wire USES transport_sides fake_nccl transport LABELS unit TIMEOUT 60)

set(transport_tests transport shm loopback nccl nccl_wire)
if(STRAIT_HAVE_UCX)
    strait_test(ucx USES transport transport_sides LABELS unit TIMEOUT 60)
    strait_add_test(transport_ucx_on_gpus COMMAND test_transport ucx-on-gpus LABELS unit TIMEOUT 120)
    list(APPEND transport_tests ucx transport_ucx_on_gpus)
    strait_test(signals USES client LABELS unit) # loads libstrait-node, and UCX with it, by its name
    target_compile_definitions(test_signals PRIVATE STRAITD="$<TARGET_FILE:straitd>")
    add_dependencies(test_signals strait-node straitd)
    set_property(TEST signals APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-node>")
    list(APPEND transport_tests signals)
endif()
set_property(TEST ${transport_tests} APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0"
    "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp:print_suppressions=0" "UCX_MEM_EVENTS=no")
