/* Stands in for NIXL's header of that name, which needs Abseil: what its public headers use of it. */
#ifndef STRAIT_NIXL_LOG_H
#define STRAIT_NIXL_LOG_H

#include <cassert>
#include <iostream>

#define NIXL_ERROR             (std::cerr << '\n' << "strait: ")
#define NIXL_ASSERT(condition) assert(condition)

#endif
