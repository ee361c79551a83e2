#include "bench/bench_collective.h"

#include "tools/util.h"

int bench_collective(int argc, char **argv)
{
#ifdef STRAIT_BENCH_CUDA
    return bench_collective_device(argc, argv);
#else
    static char name[] = "strait bench collective";

    (void)argc;
    command_begin(argv, name);
    print_error(NULL, "strait was built without CUDA");
    return EXIT_CODE_DATA;
#endif
}
