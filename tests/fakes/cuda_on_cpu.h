// What a CUDA kernel sees of its machine, on a CPU: the threads of a block are fibers that take turns, and
// change at barriers and shuffles. Blocks run one after the other, so shared memory is static.
#include <ucontext.h>

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __global__

struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float x) {  // to the nearest, ties to even
    uint32_t word;
    std::memcpy(&word, &x, 4);
    bits = std::isnan(x) ? 0x7fc0 : (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  }
  explicit operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
  }
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct Dim {
  unsigned x, y, z;
};

struct Fragments {
  unsigned a[4], b[2];
};

static Dim threadIdx, blockIdx, blockDim, gridDim;
inline float __uint_as_float(unsigned word) {
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}
inline unsigned packed(float first, float second) {
  return bfloat16(first).bits | unsigned(bfloat16(second).bits) << 16;
}
inline unsigned fused(unsigned a, unsigned b, unsigned c) {
  auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
  auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000u); };
  return packed(std::fma(low(a), low(b), low(c)), std::fma(high(a), high(b), high(c)));
}
inline unsigned across(unsigned one, unsigned other, bool is_second) {
  return is_second ? one >> 16 | (other & 0xffff0000u) : (one & 0xffffu) | other << 16;
}
template <int N>
inline void load(unsigned (&to)[N], const void* from) {
  std::memcpy(to, from, sizeof(to));
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace machine {
enum class Wait { none, warp, block, over };
constexpr std::size_t stack_bytes = 256 << 10;
struct Fiber {
  std::unique_ptr<char[]> stack;  // none before its first turn; not cleared, so only what is used takes memory
  jmp_buf place;
  Wait wait;
  float shuffled;
  Fragments fragments;
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static unsigned current;
static void (*body)();

// Jumps, because swapcontext asks the kernel for the signal mask every time.
static void pause(Wait wait) {
  fibers[current].wait = wait;
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}
static void enter() {
  for (;;) {  // once a block
    body();
    pause(Wait::over);
  }
}
static void resume(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.stack) _longjmp(fiber.place, 1);
  fiber.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack.get();
  start.uc_stack.ss_size = stack_bytes;
  start.uc_link = nullptr;
  makecontext(&start, enter, 0);
  setcontext(&start);
}
// Lets those go on that wait at a barrier which all others that still run have reached too.
static bool release(unsigned first, unsigned end, Wait wait) {
  bool is_anyone = false;
  for (unsigned t = first; t < end; ++t) {
    if (fibers[t].wait == Wait::over) continue;
    if (fibers[t].wait != wait) return false;
    is_anyone = true;
  }
  for (unsigned t = first; t < end; ++t)
    if (fibers[t].wait == wait) fibers[t].wait = Wait::none;
  return is_anyone;
}
// Whether all threads came to their end: false when some wait for a barrier that others have left out.
static bool run_block(unsigned n_threads) {
  for (Fiber& fiber : fibers) fiber.wait = Wait::none;
  for (;;) {
    bool ran = false;
    for (unsigned warp = 0; warp < n_threads; warp += 32) {
      const unsigned end = warp + 32 < n_threads ? warp + 32 : n_threads;
      do {
        for (unsigned t = warp; t < end; ++t) {
          if (fibers[t].wait != Wait::none) continue;
          current = t;
          threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
          resume(fibers[t]);
          ran = true;
        }
      } while (release(warp, end, Wait::warp));
    }
    if (release(0, n_threads, Wait::block)) continue;
    if (ran) continue;
    for (unsigned t = 0; t < n_threads; ++t)
      if (fibers[t].wait != Wait::over) return false;
    return true;
  }
}
static bool run(void (*kernel)()) {
  body = kernel;
  const unsigned n_threads = blockDim.x * blockDim.y * blockDim.z;
  fibers.resize(n_threads);
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        if (!run_block(n_threads)) {
          fibers.clear();
          return false;
        }
      }
  return true;
}
static float exchange(float x, unsigned from) {
  const unsigned warp = current / 32 * 32;
  fibers[current].shuffled = x;
  pause(Wait::warp);
  const float found = fibers[warp + from].shuffled;
  pause(Wait::warp);
  return found;
}
// The number at an even or odd place of a pair of bfloat16.
static float half_of(unsigned pair, unsigned place) {
  return __uint_as_float(place % 2 ? pair & 0xffff0000u : pair << 16);
}
}  // namespace machine

// mma.m16n8k16 over a warp: in lane 4 g + t, register r of a holds row g + 8 (r % 2), columns 2 t + 8 (r / 2) and the
// next; register r of b holds column g, rows 2 t + 8 r and the next.
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  using namespace machine;
  Fragments& mine = fibers[current].fragments;
  std::memcpy(mine.a, a, sizeof(a));
  std::memcpy(mine.b, b, sizeof(b));
  pause(Wait::warp);
  const unsigned warp = current / 32 * 32, g = current % 32 / 4, t = current % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned column = 2 * t + i % 2, below = i / 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned other = k % 8 / 2, upper = k / 8;
      const float left = half_of(fibers[warp + 4 * g + other].fragments.a[below + 2 * upper], k);
      const float right = half_of(fibers[warp + 4 * column + other].fragments.b[upper], k);
      c[i] += left * right;
    }
  }
  pause(Wait::warp);
}
inline void __syncthreads() { machine::pause(machine::Wait::block); }
inline void __syncwarp() { machine::pause(machine::Wait::warp); }
inline float __shfl_sync(unsigned, float x, unsigned lane) { return machine::exchange(x, lane); }
inline float __shfl_xor_sync(unsigned, float x, unsigned mask) {
  return machine::exchange(x, (machine::current % 32) ^ mask);
}
inline float __shfl_up_sync(unsigned, float x, unsigned delta) {
  const unsigned lane = machine::current % 32;
  return machine::exchange(x, lane < delta ? lane : lane - delta);
}
