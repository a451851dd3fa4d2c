// Plans as text: what tests write by hand and what `--dump-plan` prints. print(parse(print(p))) ==
// print(p).
//
// One item per line, words separated by blanks, `key=value` for fields (omitted: default), "#"
// comments.
//
//   arena gpu capacity=85899345920
//   buffer x 4x8 f32 class=activations framed          # name, rows x cols or bytes=N, dtype
//   buffer w 8x8 f32 class=weights persistent seed=3
//   communicator tp0 0 1
//   program stage0 frames=2
//     stream compute compute                           # name, kind
//     slot tp tp                                       # name, domain; a peer: `slot next pp peer`
//     param layer0.fc1 8x8 weight=w gradient=dw axis=rows slot=tp
//     # a parameter in a flat tensor sharded over dp: offsets count from the tensor's start
//     param layer1.fc1 8x8 weight=s{64,8,8,8,f32} weight_shards=dp gradient_shards=dp
//     input tokens samples=1 sequence=4 vocab=16 data=dp
//     loss l
//   prologue
//   body
//     # stream, name, @frame, op : reads : writes
//     kernel compute F/L0/fc1 @0 gemm m=4 n=8 k=8 tb : x w : y
//     # [rows,cols] of the buffer's own shape
//     kernel compute F/L0/fc1#1 @0 gemm … : x[0:2,0:8] w : y[0:2]
//                                                      # or any view: x{offset,rows,cols,ld,dtype}
//     record compute e0
//     wait tp e0                                       # `wait tp e0 previous`
//     collective tp F/L0/tp @0 all_reduce slot=tp n=32 : y : y
//     send pp P/L0/send @0 send_to slot=next n=32 grouped : y :
//     alloc x @0
//     free x @0
//     host_wait e3
//   rank stage0 gpu=0 tp=tp0 next=1                    # slots by name: communicator or peer rank
#pragma once

#include <string>
#include <string_view>

#include "sim/core/plan.h"

namespace gputwin {

std::string to_text(const Plan& plan);
/// The body of one program alone, for comparing what a pass did.
std::string to_text(const Plan& plan, const Program& program);
/// Throws InputError with file "plan" and pointer "line N".
Plan parse_plan(std::string_view text);

}  // namespace gputwin
