# libstrait against a scripted daemon, without memory, and what it exports.
add_library(strait_client_harness STATIC client_harness.c)
target_link_libraries(strait_client_harness PUBLIC strait_client strait_test_support PkgConfig::CHECK)

foreach(name client client_pools client_verbs)
    strait_test(${name} USES client_harness LABELS unit TIMEOUT 90)
endforeach()
strait_test(client_memory USES client LABELS unit TIMEOUT 60)
target_link_options(test_client_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
strait_add_test(client_exports COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/client_exports.sh $<TARGET_FILE:strait-client>
    LABELS unit)
# Streams that wait for transfers: the program links the driver, so that it is loaded as an application has it.
strait_test(client_stream USES client_harness LABELS unit TIMEOUT 60)
target_link_libraries(test_client_stream PRIVATE strait-fake-cuda)
