// What a call computes: its kind, shape and formats. An Op is the key of its cost and, with the
// views a Call adds, its exact meaning: tests/support/interpreter runs every kind on real numbers.
//
// `dims` and the order of views by kind. t = tokens of a micro-batch on this rank, h = hidden,
// n/m/k as in BLAS, b = sequences, a = query heads, g = key/value heads, d = head size (all local
// to the rank), s = query length, u = key length. "+=" marks an output that is accumulated when
// `accumulate` is set.
//
//  kind                 dims          reads                       writes
//  Gemm                 {m,n,k}       A, B [, bias]               C(+)=  op(A) op(B)  note 20
//  GroupedGemm          {g,m,n,k}     A, B [, bias]               C(+)= [, dbias+=]  notes 12, 21
//  AttentionScores      {b,a,g,s,u,d} Q, K                        S = Q K^T / sqrt(d) [b a s, u]
//  AttentionContext     {b,a,g,s,u,d} P, V                        O = P V [b s, a d]
//  AttentionGradProbs   {b,a,g,s,u,d} dO, V                       dP = dO V^T
//  AttentionGradValue   {b,a,g,s,u,d} P, dO                       dV = P^T dO
//  AttentionGradQuery   {b,a,g,s,u,d} dS, K                       dQ = dS K / sqrt(d)
//  AttentionGradKey     {b,a,g,s,u,d} dS, Q                       dK = dS^T Q / sqrt(d)
//  SoftmaxForward       {b,a,s,u}     S                           P  causal if flag set
//  SoftmaxBackward      {b,a,s,u}     P, dP                       dS
//  FlashForward         {b,a,g,s,u,d} Q, K, V                     O, L  L: log-sum-exp [b a s]
//  FlashBackward        {b,a,g,s,u,d} Q, K, V, O, L, dO           dQ, dK, dV
//  AttentionMerge       {b,a,s,d}     O', L'                      O, L  (also read)
//  NormForward          {t,h}         x, gamma [, beta]           y, stats  mean, 1/std [t,2]
//  NormBackward         {t,h}         dy, x, gamma, stats [, add] dx (+ add), dgamma+= [, dbeta+=]
//  ActivationForward    {t,f}         x [, bias] [, w]            y  x is [t, 2f] when gated
//  ActivationBackward   {t,f}         dy, x [, bias] [, w]        dx [, dbias+=] [, dw]
//  BiasDropoutAdd       {t,h}         x [, bias], residual        y = x + bias + residual
//  BiasGrad             {t,h}         dy                          dbias+=
//  ExpertBias           {t,h,e}       x, bias [e h], w            y  note 21
//                                     dy, bias, w                 dw [, dbias+=]  if `inverse`
//  DropoutBackward      {t,h}         dy                          dx  (dropout 0: a copy)
//  Rope                 {t,a,g,d,s,p} qkv                         qkv  in place; `inverse` backward
//  MlaRope              {t,a,n,r,s}   q                           q  in place; `inverse` backward
//  MlaKeyValue          {t,a,n,r,v,s} kv, kr                      K, V  K = [kv's n | rotated kr]
//  MlaKeyValueGrad      {t,a,n,r,v,s} dK, dV                      dkv, dkr
//  RouterForward        {t,e,k}       logits                      gates [t,k]
//  RouterBackward       {t,e,k}       dgates, logits              dlogits
//  Permute              {t,h,k,e,c}   x                           y [e c, h]  rows by expert
//  Unpermute            {t,h,k,e,c}   y [e c, h]                  x  sum over the k rows of a token
//  EmbeddingForward     {t,h,v}       tokens, table               y  rows outside the shard give 0
//  EmbeddingBackward    {t,h,v}       tokens, dy                  dtable+=
//  PositionAdd          {t,h}         x, table                    y
//  PositionGrad         {t,h}         dy                          dtable+=
//  LogitsMax            {t,v}         logits                      max [t]
//  LogitsSum            {t,v}         logits, max, targets        sums [t,2]  exp sum, target logit
//  LossFromSums         {t}           max, sums                   loss+= [1]  summed x scale
//  CrossEntropyBackward {t,v}         logits, max, sums, targets  dlogits x scale
//  Add                  {n}           x, y                        z = x + y
//  CastCopy             {n}           x [, more]                  y = scale x [, more]  also a copy
//  Quantize             {t,h}         x [, amax]                  y [, y or y^T] [, dbias+=]
//  AbsMax               {n}           x                           amax [1]
//  Encode               {t,h,k,q,c}   x [, e]                     payload [t, bytes] [, e]  note 17
//  Decode               {t,h,k,q,c,p} payloads [p t, bytes]       y  sum of the p decoded
//  Orthonormalise       {n,r}         x [n, r]                    x  columns, in place  note 19
//  Zero                 {n}           -                           x = 0
//  SumOfSquares         {n}           x                           s+= [1]
//  AdamStep             {n}           grad, sumsq                 master, m, v, weight (also read)
//  LambStep             {n}           grad, sumsq                 as AdamStep
//  SgdStep              {n}           grad, sumsq                 master, momentum, weight
//  CpuAdam              {n,r}                                     as AdamStep, on the host  note 18
//  Opaque               {}            any                         any; cost: flops and bytes
//  ConvForward          {n,c,f,h,w,o} x, w [, bias]               y  note 15
//  ConvGradInput        {n,c,f,h,w,o} dy, w                       dx
//  ConvGradWeight       {n,c,f,h,w,o} dy, x                       dw+= [, dbias+=]
//  RnnForward           {b,s,i,h,g}   x, w                        y, kept  note 16
//  RnnGradInput         {b,s,i,h,g}   dy, kept, w                 dx, dgates
//  RnnGradWeight        {b,s,i,h,g}   dgates, x, y                dw+=
//  AllReduce            {n}           x                           x  in place (sum or max)
//  AllGather            {n}           x (shard)                   y [n], shard i at i n / ranks
//  ReduceScatter        {n}           x (n elements)              y (shard)
//  AllToAll             {n}           x                           y
//  Broadcast            {n}           x                           x  from member `root`
//  SendTo / RecvFrom    {n}           x / -                       - / x
//  CopyBytes            {n}           x                           y  H2D, D2H, D2D, NVMe by `copy`
//
// Notes
//  1. A valid `slot` on a kernel says which shard the rank holds: member i of the communicator has
//     rows [i v, (i+1) v) of the vocabulary (Embedding*, LogitsSum, CrossEntropyBackward) or tokens
//     [i t, (i+1) t) (Position*). Without slot i is 0. Token r stands at position r mod s; for
//     Position* s is the rows of the table's view.
//  2. CastCopy with a slot copies the rank's own shard: x has ranks x n elements, y gets those of
//     member i.
//  3. With dropout > 0 a kernel also writes its mask (U8), and SoftmaxForward writes P, dropped P,
//     mask; DropoutBackward and SoftmaxBackward read the mask last. CastCopy with dropout is a
//     dropout alone.
//  4. Without master copy AdamStep and LambStep write m, v, weight, SgdStep momentum, weight.
//  5. q, k and v are column ranges of one tensor [t, q | k | v]; each is sharded by heads on its
//     own.
//  6. Rows of [t, *] are ordered sample by sample. Rope turns the pairs (x, x + d/2) of the first a
//     + g heads of each row by ((row + p) mod s) x 10000^(-2x/d). Causal: query i of s sees keys
//     0 .. i + u - s. Query head h uses key head h / (a / g). Gated activations: x is [gate | up],
//     y = act(gate) x up. ALiBi: head h of n gets slope(h, n) x key position added to its scores;
//     its slope is 2^(-8 (h + 1) / n) for a power of two, else as Press et al. 2022 continue it.
//     `slot` is tensor parallelism then: the rank's heads are a .. of member x a, n = a x members.
//  7. SumOfSquares counts an element of a Parameter's gradient once over the communicator that adds
//     the sums, on the first member that holds it: tensor-parallel replicas and tied copies are
//     masked by Parameter.
//  8. A valid `cp_slot` says that the sequence is cut over that communicator (context parallelism):
//     of 2n equal chunks in order of position, member i of n holds chunks i and 2n - 1 - i, in this
//     order. Row r of the s rows of a sample then stands where that chunk puts it; Rope, Position*,
//     Softmax* and Flash* go by that position. Queries are the rank's rows. Keys are the whole
//     sequence in order of position (u = n s), or the rows of one member (u = s): of member
//     (i - ring_step) mod n. Causal: a query sees the keys up to its own position; one that sees
//     none has O = 0 and L = -inf. FlashBackward takes the L and O it is given, of all steps
//     together, and gives this step's part of dQ, dK and dV.
//  9. AttentionMerge joins attention over two sets of keys: L = log(exp L + exp L'), each O weighed
//     by exp(its L - L). CastCopy with several reads copies read k to write k; n counts all.
// 10. Quantize writes copies in a format of 8 or 4 bits: `trans_a` transposes the first, `trans_b`
//     the second; with `accumulate` the last write is the sum over tokens, a bias gradient. To the
//     interpreter 8- and 4-bit numbers are exact, scales 1, and a Hadamard transform, which the
//     product over tokens undoes, the identity; and LAMB's trust ratio is 1.
// 11. Frozen norms: NormBackward writes dx alone. A second write of Gemm is memory held, no value.
// 12. Experts. Blocks of an operand of GroupedGemm lie below each other: block i of C is the
//     product of blocks i of A and B. Routing is a table that all layouts share: choice j of token
//     row r is expert (r k + j) mod e, row (r k + j) / e of that expert's c; what lies beyond c is
//     dropped and rows without a token are 0. It is even, and the same whatever the layout where e
//     divides k times the rows of every contiguous piece of a sequence that a rank holds. `load`
//     tells kernels otherwise. Gates are the router's softmax over all experts at the chosen ones.
//     With `weighted` Activation* multiply row i of y by w[i] [t, 1].
// 13. Multi-head latent attention: a head's query and key are [n | r] wide, r of them rotated by
//     position as in note 6; the rotated part of the key, kr [t, r], is one for all heads. A head
//     of kv is [n | v]. `value_size` of Flash* is the head size of V and O where it is not d.
// 14. `window` of Flash*: a query sees its own key and the window - 1 before it. `launches`:
//     kernels that one instruction stands for, each at the host's launch cost.
// 15. Convolution of n images of c channels and h x w pixels with f filters in o groups; `filter`
//     is its size, stride and padding. Images are rows of [n, c h w], filters of [f, c / o, rows,
//     columns]; the result is [n, f h' w'].
// 16. Recurrent layer over s steps of b sequences: i inputs, h outputs, g gates of h each (4: LSTM,
//     3: GRU); `kept` holds the gates of all steps. Costs alone: not interpreted.
// 17. A codec (codec.h) of kind c keeps k values of q bits of each token's h. The interpreter keeps
//     the k largest exactly, as if q were wide, where their row of bytes can hold them. With e
//     (error feedback) x + e is encoded, and what the payload lacks of it is left in e.
// 18. r ranks of a node step at once and share its cores and memory; 0: as many as it has GPUs.
// 19. Gram-Schmidt, twice; a column that depends on those before it becomes 0. `launches` kernels.
// 20. A Gemm with a valid `slot` multiplies the rows of one member, (i - ring_step) mod n for
// member
//     i of n: an operand with n times the elements that dims say is cut into n row blocks, and the
//     member's is meant (ring exchange, lowering/ring.h).
// 21. Biases of experts, one of n or h elements for each block. A product adds them to the rows of
//     its block; with trans_a its second write takes the sums of A's blocks over the rows. Apart,
//     row i of block j gets w[i] bias[j] (w is [t, 1]), as experts' outputs are weighed before they
//     are summed. Its last write is memory held, no value.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "sim/core/ids.h"
#include "sim/core/job.h"
#include "sim/core/topology.h"
#include "sim/core/workload.h"

namespace gputwin {

enum class OpKind : std::uint8_t {
  Gemm,
  GroupedGemm,
  AttentionScores,
  AttentionContext,
  AttentionGradProbs,
  AttentionGradValue,
  AttentionGradQuery,
  AttentionGradKey,
  SoftmaxForward,
  SoftmaxBackward,
  FlashForward,
  FlashBackward,
  AttentionMerge,
  NormForward,
  NormBackward,
  ActivationForward,
  ActivationBackward,
  BiasDropoutAdd,
  BiasGrad,
  ExpertBias,
  DropoutBackward,
  Rope,
  MlaRope,
  MlaKeyValue,
  MlaKeyValueGrad,
  RouterForward,
  RouterBackward,
  Permute,
  Unpermute,
  EmbeddingForward,
  EmbeddingBackward,
  PositionAdd,
  PositionGrad,
  LogitsMax,
  LogitsSum,
  LossFromSums,
  CrossEntropyBackward,
  Add,
  CastCopy,
  Quantize,
  AbsMax,
  Encode,
  Decode,
  Orthonormalise,
  Zero,
  SumOfSquares,
  AdamStep,
  LambStep,
  SgdStep,
  CpuAdam,
  Opaque,
  ConvForward,
  ConvGradInput,
  ConvGradWeight,
  RnnForward,
  RnnGradInput,
  RnnGradWeight,
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast,
  SendTo,
  RecvFrom,
  CopyBytes
};

constexpr bool is_collective(OpKind k) { return k >= OpKind::AllReduce && k <= OpKind::Broadcast; }
constexpr bool is_convolution(OpKind k) {
  return k >= OpKind::ConvForward && k <= OpKind::ConvGradWeight;
}
constexpr bool is_recurrent(OpKind k) {
  return k >= OpKind::RnnForward && k <= OpKind::RnnGradWeight;
}
constexpr bool is_attention_gemm(OpKind k) {
  return k >= OpKind::AttentionScores && k <= OpKind::AttentionGradKey;
}

struct Op {
  OpKind kind = OpKind::Opaque;
  DType dtype = DType::F32;  // of the inputs (Gemm: of the matrix multiply)
  DType out = DType::F32;    // of the outputs
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  // outputs marked += add to what is there
  bool causal = false;
  bool alibi = false;  // AttentionScores, Flash*: the head's slope times the key position is added
  bool inverse = false;     // Rope: rotate back; ExpertBias: the gradient
  bool reduce_max = false;  // AllReduce: max instead of sum
  bool pinned = true;       // CopyBytes: page-locked host memory
  bool weighted = false;    // Activation*: rows are weighted (note 12)
  Activation activation = Activation::Gelu;
  Norm norm = Norm::LayerNorm;
  AttentionKernel attention = AttentionKernel::Unfused;  // Flash*: which kernel
  CopyKind copy = CopyKind::DeviceToDevice;
  std::uint8_t fused = 1;       // pointwise kernels this one replaces; > 1 only lowers launch count
  std::uint16_t launches = 1;   // kernels of one instruction (note 14)
  std::int32_t value_size = 0;  // Flash*: note 13
  std::int32_t window = 0;      // Flash*: note 14; 0: none
  float dropout = 0.0f;         // probability; costs the mask, interpreted only when 0
  float scale = 1.0f;  // CastCopy; LossFromSums, CrossEntropyBackward: 1 / tokens of the batch
  SlotId slot{};       // communication: communicator or peer slot of the program
  SlotId cp_slot{};    // context parallelism: how positions and keys lie (note 8)
  std::uint32_t ring_step = 0;  // whose keys (Flash*, note 8), whose rows (Gemm, note 20)
  std::uint32_t root = 0;       // Broadcast: member index
  std::uint32_t load = 0;       // load table + 1; 0: even
  std::array<std::int64_t, 6> dims{};
  // Conv*: filter height and width, stride down and across, padding down and across.
  std::array<std::int64_t, 6> filter{};
  Flops flops{};  // Opaque: stated cost
  // Opaque: device time measured elsewhere; Gemm: that of a bound (passes/fused_bound.h); 0:
  // priced.
  Seconds stated{};
  Bytes workspace{};

  bool operator==(const Op&) const = default;
};

/// A rectangle of a buffer: `rows` x `cols` elements of `dtype`, row r at offset + r * ld (in
/// elements).
struct View {
  BufferId buffer{};
  std::int64_t offset = 0;
  std::int64_t rows = 0, cols = 0;
  std::int64_t ld = 0;
  DType dtype = DType::F32;

  bool operator==(const View&) const = default;
  std::int64_t elements() const { return rows * cols; }
  Bytes bytes() const { return Bytes(stored_bytes(dtype, elements())); }
};

/// True if two views of one buffer share an element (exact for equal row pitch, else by their
/// hulls).
bool overlap(const View& a, const View& b);

}  // namespace gputwin
