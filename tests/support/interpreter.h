// The interpreter that gives plans their meaning, under the name by which tests know it.
#pragma once

#include "validation/executors/interpreter/interpreter.h"
