"""Device functions around the tensor cores' products of bfloat16."""

from __future__ import annotations

from functools import cache

import mlx.core as mx

# mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane 4 g + t holds of A the rows g and g + 8,
# of B the column g, of C the rows g and g + 8 in the columns 2 t and 2 t + 1. Which numbers of a row and a
# column meet does not matter as long as both sides agree, so a lane may read neighbouring ones of each.
TENSOR_CORE = """
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Volatile, so that loads stay in front of the products.
__device__ __forceinline__ void load(unsigned (&to)[4], const void* from) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}
__device__ __forceinline__ void load(unsigned (&to)[2], const void* from) {
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}
// Pairs of bfloat16: a * b + c, rounded once.
__device__ __forceinline__ unsigned fused(unsigned a, unsigned b, unsigned c) {
  unsigned pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}
__device__ __forceinline__ unsigned packed(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// The first or the second of each pair.
__device__ __forceinline__ unsigned across(unsigned one, unsigned other, bool is_second) {
  return is_second ? one >> 16 | (other & 0xffff0000u) : (one & 0xffffu) | other << 16;
}
"""


@cache
def has_tensor_cores() -> bool:
    """Whether the GPU multiplies pairs of bfloat16: from compute capability 8.0 on."""
    return int(mx.device_info().get("compute_capability_major", 8)) >= 8
