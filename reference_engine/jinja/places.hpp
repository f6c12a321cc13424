/// @file
/// Finds out, before anything is rendered, which variable each name means.
#pragma once
#include <string>

#include "jinja/tree.hpp"

namespace ferry::engine::jinja {

/// Gives all variables of a tree their places. Throws InputError, which begins with `name`, for what jinja2 refuses to
/// compile: filters and tests that do not exist, and assignments to a loop's own `loop`.
///
/// The rules are jinja2's. A block is what `for`, a macro, `call`, `with`, `filter`, a block set and `generation`
/// enclose, and the template; `if` makes none. A name belongs to the innermost block that sets it, anywhere in it, or
/// that names it, if no surrounding one does. On entry, it is copied from the surrounding block that has it. If none
/// has, it comes from the context, unless the first thing that the block does with it is to set it, outside of any `if`: then
/// it is unset until there.
void find_places(Tree& tree, const std::string& name);

}  // namespace ferry::engine::jinja
