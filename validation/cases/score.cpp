// Answers of the commands against the checks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/app/json_text.h"
#include "sim/core/error.h"
#include "validation/cases/cases.h"

namespace gputwin::cases {
namespace {

// Thrown inside this file: a command did not give the number asked for.
struct NoAnswer {
  std::string why;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Evaluates the expressions of one case.
class Evaluator {
 public:
  Evaluator(const MappedCase& mapped, const std::string& id, const std::vector<Command>& commands,
            const std::vector<Ran>& ran)
      : mapped_(mapped) {
    for (std::size_t i = 0; i < commands.size(); ++i) {
      if (commands[i].case_id != id) continue;
      ran_[commands[i].name] = {&commands[i], &ran[i]};
    }
  }

  [[noreturn]] void bad(const std::string& pointer, const Json& value, const std::string& problem,
                        const std::string& fix) const {
    throw InputError(mapped_.file, mapped_.pointer + pointer, value.dump().substr(0, 60), problem,
                     fix);
  }

  const Ran& ran(const Json& name, const std::string& pointer) {
    const auto found = name.is_string() ? ran_.find(name.get<std::string>()) : ran_.end();
    if (found == ran_.end()) bad(pointer, name, "names no run of the case", "see its runs");
    const auto& [command, result] = found->second;
    if (result->exit == 2 && !command->may_fail) {
      throw InputError(command->file, command->pointer,
                       fmt::format("gputwin {}", fmt::join(command->arguments, " ")),
                       "is bad input: " + first_line(result->err), "correct the command");
    }
    return *result;
  }

  double number(const Json& e, const std::string& pointer) {
    if (e.is_number()) return e.get<double>();
    if (!e.is_object()) bad(pointer, e, "is no expression", kForms);
    double value = 0;
    if (e.contains("run")) {
      value = output(e, pointer);
    } else {
      value = combined(e, pointer);
    }
    const auto scale = e.find("scale");
    if (scale == e.end()) return value;
    if (!scale->is_number()) bad(pointer + "/scale", *scale, "is no number", "write a factor");
    return value * scale->get<double>();
  }

  // True if the run ended well, false if it was infeasible.
  bool fits(const Json& name, const std::string& pointer) {
    const Ran& r = ran(name, pointer);
    if (r.exit != 0 && r.exit != 3) throw NoAnswer{first_line(r.err)};
    return r.exit == 0;
  }

 private:
  static constexpr const char* kForms =
      "write a number, {run, at}, or ratio, difference, sum, product, max or min of a list";

  double output(const Json& e, const std::string& pointer) {
    const Ran& r = ran(e["run"], pointer + "/run");
    if (r.exit != 0) throw NoAnswer{fmt::format("exit code {}: {}", r.exit, first_line(r.err))};
    const auto at = e.find("at");
    if (at == e.end() || !at->is_string()) {
      bad(pointer + "/at", e, "is no JSON pointer", "name a place in the output, /mfu");
    }
    const Json out = Json::parse(r.out, nullptr, false);
    if (out.is_discarded()) bad(pointer + "/run", e["run"], "prints no JSON", "add --json");
    const Json* found = nullptr;
    try {
      found = &out.at(Json::json_pointer(at->get<std::string>()));
    } catch (const Json::exception&) {
      bad(pointer + "/at", *at, "stands not in the output", "see what the command prints");
    }
    if (!found->is_number()) bad(pointer + "/at", *at, "is no number there", "name a number");
    return found->get<double>();
  }

  double combined(const Json& e, const std::string& pointer) {
    for (const char* form : {"ratio", "difference", "sum", "product", "max", "min"}) {
      const auto list = e.find(form);
      if (list == e.end()) continue;
      const std::string at = pointer + "/" + form;
      const std::string word = form;
      const bool two = word == "ratio" || word == "difference";
      if (!list->is_array() || list->empty() || (two && list->size() != 2)) {
        bad(at, *list, "is no list", two ? "write two expressions" : "write expressions");
      }
      std::vector<double> values;
      for (std::size_t i = 0; i < list->size(); ++i) {
        values.push_back(number((*list)[i], child_pointer(at, i)));
      }
      return combine(word, values);
    }
    bad(pointer, e, "is no expression", kForms);
  }

  static double combine(const std::string& form, const std::vector<double>& v) {
    double value = v[0];
    for (std::size_t i = 1; i < v.size(); ++i) {
      if (form == "ratio") value /= v[i];
      if (form == "difference") value -= v[i];
      if (form == "sum") value += v[i];
      if (form == "product") value *= v[i];
      if (form == "max") value = std::max(value, v[i]);
      if (form == "min") value = std::min(value, v[i]);
    }
    return value;
  }

  const MappedCase& mapped_;
  std::map<std::string, std::pair<const Command*, const Ran*>> ran_;
};

bool holds(const Check& check, double predicted) {
  const double value = check.value.get<double>(), slack = check.tolerance * std::abs(value);
  const double rounding = 1e-9 * std::abs(value);
  if (check.op == "approx") return std::abs(predicted - value) <= slack + rounding;
  if (check.op == "eq") return std::abs(predicted - value) <= rounding;
  if (check.op == "ge") return predicted >= value - slack;
  if (check.op == "le") return predicted <= value + slack;
  return check.op == "gt" ? predicted > value : predicted < value;
}

class Scorer {
 public:
  Scorer(const Case& c, const MappedCase& mapped, const std::vector<Command>& commands,
         const std::vector<Ran>& ran)
      : case_(c), mapped_(mapped), evaluator_(mapped, c.id, commands, ran) {
    const auto checks = mapped.node.find("checks");
    if (checks == mapped.node.end()) return;
    for (const auto& [key, node] : checks->items()) {
      if (!known(key)) {
        evaluator_.bad(child_pointer("/checks", key), node, "answers no check of the case",
                       "use the metrics of the case file");
      }
    }
  }

  // `key`: the metric, with #2 for its second check, and so on.
  void score(const Check& check, const std::string& key, Scored& s) {
    const auto whole = mapped_.node.find("not_scorable");
    if (whole != mapped_.node.end()) {
      s.reason = reason(*whole, "/not_scorable");
      return;
    }
    const auto checks = mapped_.node.find("checks");
    if (checks == mapped_.node.end() || !checks->contains(key)) {
      s.reason = "not mapped";
      return;
    }
    const Json& answer = checks->at(key);
    const std::string pointer = child_pointer("/checks", key);
    if (answer.contains("not_scorable")) {
      s.reason = reason(answer["not_scorable"], pointer + "/not_scorable");
      return;
    }
    bool held = false;
    try {
      held = decide(check, answer, pointer, s);
    } catch (const NoAnswer& none) {
      s.reason = none.why;
    }
    s.verdict = held ? Verdict::Held : Verdict::Failed;
  }

 private:
  bool known(const std::string& key) const {
    const std::size_t mark = key.rfind('#');
    const std::string metric = key.substr(0, mark);
    const auto count = std::count_if(case_.checks.begin(), case_.checks.end(),
                                     [&](const Check& c) { return c.metric == metric; });
    return mark == std::string::npos ? count > 0 : count >= std::atoi(key.c_str() + mark + 1);
  }

  std::string reason(const Json& text, const std::string& pointer) {
    if (!text.is_string() || text.get<std::string>().empty()) {
      evaluator_.bad(pointer, text, "is no reason", "say in a sentence why");
    }
    return text.get<std::string>();
  }

  bool decide(const Check& check, const Json& answer, const std::string& pointer, Scored& s) {
    if (answer.contains("fails")) return decide_failure(answer, pointer, s);
    if (answer.contains("order")) return decide_order(answer["order"], pointer + "/order", s);
    if (!answer.contains("value")) {
      evaluator_.bad(pointer, answer, "says not what answers the check",
                     "write value, order, fails or not_scorable");
    }
    const Json& value = answer["value"];
    if (value.is_object() && value.contains("fits")) {
      const bool fits = evaluator_.fits(value["fits"], pointer + "/value/fits");
      s.predicted = fits ? "true" : "false";
      return check.value == Json(fits);
    }
    if (value.is_number()) {
      evaluator_.bad(pointer + "/value", value, "predicts nothing", "name a run and a place in it");
    }
    const double predicted = evaluator_.number(value, pointer + "/value");
    s.predicted = fmt::format("{:.6g}", predicted);
    if (!check.value.is_number()) {
      evaluator_.bad(pointer + "/value", value, "is a number, the answer is none",
                     "write order, fails or not_scorable");
    }
    return holds(check, predicted);
  }

  bool decide_failure(const Json& answer, const std::string& pointer, Scored& s) {
    const Ran& r = evaluator_.ran(answer["fails"], pointer + "/fails");
    s.predicted = fmt::format("exit {}: {}", r.exit, first_line(r.err));
    if (r.exit != 2 && r.exit != 3) return false;
    const auto mentions = answer.find("mentions");
    if (mentions == answer.end()) return true;
    return std::all_of(mentions->begin(), mentions->end(), [&](const Json& word) {
      return r.err.find(word.get<std::string>()) != std::string::npos;
    });
  }

  bool decide_order(const Json& list, const std::string& pointer, Scored& s) {
    if (!list.is_array() || list.size() < 2) {
      evaluator_.bad(pointer, list, "is no order", "list two expressions or more, largest first");
    }
    std::vector<double> values;
    for (std::size_t i = 0; i < list.size(); ++i) {
      values.push_back(evaluator_.number(list[i], child_pointer(pointer, i)));
    }
    s.predicted = fmt::format("{:.6g}", fmt::join(values, " > "));
    return std::adjacent_find(values.begin(), values.end(), std::less_equal<>()) == values.end();
  }

  const Case& case_;
  const MappedCase& mapped_;
  Evaluator evaluator_;
};

}  // namespace

std::vector<Scored> score(const std::vector<Case>& cases,
                          const std::map<std::string, MappedCase>& mapping,
                          const std::vector<Command>& commands, const std::vector<Ran>& ran) {
  std::vector<Scored> all;
  for (const Case& c : cases) {
    const auto mapped = mapping.find(c.id);
    std::optional<Scorer> scorer;
    if (mapped != mapping.end()) scorer.emplace(c, mapped->second, commands, ran);
    std::map<std::string, int> seen;
    for (const Check& check : c.checks) {
      Scored s;
      s.id = c.id;
      s.category = c.category;
      s.metric = check.metric;
      s.op = check.op;
      s.unit = check.unit;
      s.tolerance = check.tolerance;
      s.numeric = check.value.is_number() && check.op != "observed";
      s.expected = check.value.is_string() ? check.value.get<std::string>() : check.value.dump();
      const int nth = ++seen[check.metric];
      if (check.op == "observed") {
        s.reason = "an observation to compare with, not to predict";
      } else if (scorer) {
        scorer->score(check, nth == 1 ? check.metric : fmt::format("{}#{}", check.metric, nth), s);
      } else {
        s.reason = "not mapped";
      }
      all.push_back(std::move(s));
    }
  }
  return all;
}

}  // namespace gputwin::cases
