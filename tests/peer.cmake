# Connections between nodes, over every transport that this build has.
add_library(strait_peer_node STATIC peer_node.c)
target_link_libraries(strait_peer_node PUBLIC strait_peers PkgConfig::CHECK)

strait_test(peer USES peers peer_node LABELS unit TIMEOUT 120)
strait_test(peer_stranger USES peers peer_node LABELS unit TIMEOUT 60)
strait_test(peer_gpu USES peers peer_node fake_nccl LABELS unit TIMEOUT 120)
set_property(TEST peer peer_stranger peer_gpu APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0" "UCX_MEM_EVENTS=no")
