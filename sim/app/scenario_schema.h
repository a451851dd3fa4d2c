// The JSON Schemas of scenarios/schema, compiled in: shape, types, ranges and spellings.
//
// Valijson decides whether a document is legal; what it reports is turned into one InputError that
// names the offending leaf and a way out, read off the same schema. Keywords of ours: `x-unit`
// (unit of a number), `x-planned` (known but not supported yet; for words a map to the nearest
// legal choice), `x-planned-keys`.
#pragma once

#include <optional>
#include <string>

#include "sim/app/json_text.h"

namespace gputwin {

/// Graph: a model of kind layer-graph.
enum class SchemaKind { Scenario, Model, Graph, Cluster };

/// The schema as JSON, parsed once.
const Json& schema_json(SchemaKind kind);

/// Something wrong at one place of a document.
struct SchemaBreach {
  std::string pointer;  // into the document
  std::string value;    // as text; empty if missing
  std::string problem;
  std::string fix;
};

/// The first breach of `document` against the schema, in document order; nullopt if it is legal.
std::optional<SchemaBreach> check_schema(SchemaKind kind, const Json& document);

/// The schema of a model: Graph if it says so, else Model.
SchemaKind model_schema(const Json& model);

/// The subschema that describes `pointer`, or null if the schema has no such place. In a scenario,
/// "/model/…" and "/cluster/…" lead into the schemas of those files; what no Transformer has is
/// looked for among layer graphs.
const Json* schema_at(SchemaKind kind, const std::string& pointer);

}  // namespace gputwin
