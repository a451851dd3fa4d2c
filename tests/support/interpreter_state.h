// The interpreter's machine, under the name by which tests know it.
#pragma once

#include "validation/executors/interpreter/interpreter_state.h"
