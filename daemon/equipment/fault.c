#include "daemon/equipment/fault.h"

fault_function *fault_hook;
