#include "daemon/base/fault.h"

fault_function *_Atomic fault_hook;
