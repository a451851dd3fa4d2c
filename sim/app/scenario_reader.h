// Turns a schema-checked document into values of sim/core. Defaults of keys left out are filled in
// here, and nowhere else; scenarios/README.md lists them.
#pragma once

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"

namespace gputwin {

Transformer read_transformer(const Json& model);
Cluster read_cluster(const Json& cluster);
Job read_job(const Json& job);
AllocatorChoice read_allocator(const Json& job);
Layout read_layout(const Json& layout);
WhatIf read_what_if(const Json& what_if);

}  // namespace gputwin
