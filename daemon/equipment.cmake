# What the daemon stands on and what knows nothing of transfers: options, log, metrics, HTTP, lock, authentication.

strait_component(equipment
    SOURCES address.c option_table.c option_value.c options.c options_print.c log.c lock.c auth.c
            metrics.c metrics_text.c metrics_json.c http_request.c http.c
    USES PkgConfig::UV PkgConfig::CJSON PkgConfig::CRYPTO Threads::Threads)
