# The daemon's memory and jobs.
strait_test(pool_regions USES memory LABELS unit)
strait_test(pool USES memory LABELS unit)
target_sources(test_pool_regions PRIVATE pool_harness.c)
target_sources(test_pool PRIVATE pool_harness.c)
strait_test(arena USES memory LABELS unit)
strait_test(job USES memory LABELS unit TIMEOUT 60)
