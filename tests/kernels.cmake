# The codec: block coders, chunks, the library's calls, codebooks and files.
strait_test(block USES kernels LABELS unit TIMEOUT 60)
strait_test(pages USES kernels LABELS unit)
strait_test(typed USES kernels LABELS unit TIMEOUT 180)
strait_test(batch USES kernels LABELS unit)
strait_test(codebook_file USES kernels LABELS unit)
strait_test(container USES container LABELS unit)

add_library(strait_chunk_harness STATIC chunk_harness.c)
target_link_libraries(strait_chunk_harness PUBLIC strait_test_support PkgConfig::CHECK)
foreach(name chunk chunk_tables chunk_streams chunk_blocks chunk_changing)
    strait_test(${name} USES chunk_harness LABELS unit TIMEOUT 120)
endforeach()

add_library(strait_codec_harness STATIC codec_harness.c)
target_link_libraries(strait_codec_harness PUBLIC strait_test_support PkgConfig::CHECK)
foreach(name codec codec_modes codec_runs codec_names codec_arguments codebook)
    strait_test(${name} USES codec_harness LABELS unit TIMEOUT 60)
endforeach()
