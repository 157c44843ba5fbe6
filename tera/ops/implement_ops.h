#pragma once
// What the backends and decorators of Ops inherit: every op of AllOps becomes one call of the backend's own
// `template <class Args> void compute(const Args&)`. A backend specialises it in the file of each family:
//
//   template <>
//   void CpuOps::compute(const GemmArgs& args) { ... }
//
// and an op that it forgets is an undefined symbol when the program is linked. A decorator has one definition for all.

#include "tera/ops/ops.h"

namespace tera {

template <class Self, class List>
class ImplementEach;

template <class Self>
class ImplementEach<Self, OpList<>> : public Ops {
 protected:
  using Ops::execute;
};

template <class Self, class Args, class... Others>
class ImplementEach<Self, OpList<Args, Others...>> : public ImplementEach<Self, OpList<Others...>> {
 protected:
  using ImplementEach<Self, OpList<Others...>>::execute;
  void execute(const Args& args) override { static_cast<Self&>(*this).compute(args); }
};

template <class Self>
using ImplementOps = ImplementEach<Self, AllOps>;

}  // namespace tera
