#pragma once
// Heads of multi-head latent attention (MLA): keys and values from the up-projection of the latent, and one rotary key
// that all heads share. T rows, N heads; a head has A key channels without rotary embedding, U value channels and R
// rotary channels. U <= A+R.

#include "tera/tensor/tensor.h"

namespace tera {

// k[t,n] = [kv[t,n,:A] | rotary[t]] and v[t,n] = [kv[t,n,A:] | zeros], so that both have the same head size.
struct LatentHeadsArgs {
  Tensor kv;      // [T,N,A+U]
  Tensor rotary;  // [T,R], rows may be strided
  Tensor k, v;    // [T,N,A+R]
  void check() const;
};

// dkv[t,n] = [dk[t,n,:A] | dv[t,n,:U]] and drotary[t] = the sum over heads, in order and in fp32, of dk[t,n,A:].
struct LatentHeadsBackArgs {
  Tensor dk, dv;   // [T,N,A+R]
  Tensor dkv;      // [T,N,A+U]
  Tensor drotary;  // [T,R], rows may be strided
  void check() const;
};

}  // namespace tera
