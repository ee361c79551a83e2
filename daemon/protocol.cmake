# The transfer protocol and its bookkeeping: pure code, without a loop, sockets or time, so that tests can explore it.
strait_component(protocol
    SOURCES leg.c sink_leg.c source_leg.c page_set.c segments.c coverage.c
    USES strait_kernels)
