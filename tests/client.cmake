# libstrait against a scripted daemon, without memory, and what it exports.
strait_test(client USES client LABELS unit TIMEOUT 90)
strait_test(client_memory USES client LABELS unit TIMEOUT 60)
target_link_options(test_client_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
strait_add_test(client_exports COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/client_exports.sh $<TARGET_FILE:strait-client>
    LABELS unit)
