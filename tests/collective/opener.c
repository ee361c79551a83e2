/* opener MODULE ...: opens the module, which is linked with NCCL, so that nobody else sees what it brings along, as
 * Python opens the extensions of a framework; and runs it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*run)(int, char **) = NULL;
    void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (module != NULL)
        *(void **)&run = dlsym(module, "caller_main");
    if (run == NULL) {
        fprintf(stderr, "opener: %s\n", dlerror());
        return 1;
    }
    return run(argc - 1, argv + 1);
}
