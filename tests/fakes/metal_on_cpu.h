// What a Metal kernel sees of its machine, on a CPU: threads as in cuda_on_cpu.h, 32 of them a simdgroup.
#include "cuda_on_cpu.h"

using uint = unsigned;
using half = _Float16;
struct bfloat16_t {
  bfloat16 held;
  bfloat16_t() = default;
  bfloat16_t(float x) : held(x) {}
  operator float() const { return static_cast<float>(held); }
};
#define device
#define constant
#define thread
#define threadgroup static
#define thread_position_in_threadgroup threadIdx
#define thread_position_in_grid \
  (Dim{blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, \
       blockIdx.z * blockDim.z + threadIdx.z})
#define threads_per_grid \
  (Dim{gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z})
#define thread_index_in_simdgroup (machine::current % 32)
#define simdgroup_index_in_threadgroup (machine::current / 32)

namespace mem_flags {
constexpr int mem_threadgroup = 0;
}
inline void threadgroup_barrier(int) { __syncthreads(); }
inline float simd_shuffle_xor(float x, unsigned mask) { return __shfl_xor_sync(0xffffffff, x, mask); }
inline float simd_sum(float x) {
  for (unsigned mask = 1; mask < 32; mask *= 2) x += simd_shuffle_xor(x, mask);
  return x;
}
namespace metal {
inline float exp(float x) { return std::exp(x); }
inline float log(float x) { return std::log(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float fabs(float x) { return std::fabs(x); }
inline float max(float a, float b) { return std::fmax(a, b); }
namespace precise {
inline float exp(float x) { return std::exp(x); }
inline float log(float x) { return std::log(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
}  // namespace precise
}  // namespace metal
