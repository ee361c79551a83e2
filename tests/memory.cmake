# The daemon's memory and jobs.
strait_test(pool USES memory LABELS unit)
strait_test(arena USES memory LABELS unit)
strait_test(job USES memory LABELS unit TIMEOUT 60)
