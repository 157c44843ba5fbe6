#pragma once
// The arguments of every op, for what implements all of them.

#include "tera/ops/attention.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/embedding.h"
#include "tera/ops/expert_rows.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"
#include "tera/ops/grouped_gemm.h"
#include "tera/ops/latent_heads.h"
#include "tera/ops/loss.h"
#include "tera/ops/norm.h"
#include "tera/ops/optim.h"
#include "tera/ops/pointwise.h"
#include "tera/ops/random.h"
#include "tera/ops/rope.h"
#include "tera/ops/route.h"
