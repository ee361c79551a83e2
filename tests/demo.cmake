# `strait demo` and `strait status`, with daemons of their own.
add_executable(demo_waiter demo_waiter.c)
target_link_libraries(demo_waiter PRIVATE strait_client strait_kernels)
strait_cli_test(demo TIMEOUT 120)
set_property(TEST demo APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0" "UCX_MEM_EVENTS=no"
    "STRAITD=$<TARGET_FILE:straitd>" "STRAIT_WAITER=$<TARGET_FILE:demo_waiter>")
