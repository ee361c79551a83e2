#include "daemon/base/fault.h"

fault_function *fault_hook;
