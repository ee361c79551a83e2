# Options, log, metrics, HTTP, lock and authentication of the daemon.
strait_test(options USES equipment LABELS unit ALONE)
strait_test(log USES equipment LABELS unit TIMEOUT 60)
strait_test(metrics USES equipment LABELS unit ALONE)
strait_test(http USES equipment LABELS unit TIMEOUT 60)
strait_test(lock USES equipment LABELS unit)
strait_test(auth USES equipment LABELS unit)
