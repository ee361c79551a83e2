# Options, log, metrics, HTTP, lock and authentication of the daemon.
strait_test(options USES base LABELS unit ALONE)
strait_test(log USES base LABELS unit TIMEOUT 60)
strait_test(metrics USES base LABELS unit ALONE)
strait_test(http USES base LABELS unit TIMEOUT 60)
strait_test(lock USES base LABELS unit)
strait_test(auth USES base LABELS unit)
