#include "daemon/fault.h"

fault_function *fault_hook;
