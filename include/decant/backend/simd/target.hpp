// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The instruction sets that kernels are written for, and whether the machine runs them.

#include <decant/core/config.hpp>
#include <decant/core/error.hpp>
#include <decant/core/result.hpp>
#include <decant/core/target.hpp>
#include <decant/core/text.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>

#if DECANT_X86 && defined(__x86_64__) && defined(__linux__)
#define DECANT_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define DECANT_AMX 0
#endif

#if defined(__aarch64__) && !defined(__AARCH64EB__) && (defined(__GNUC__) || defined(__clang__))
#define DECANT_ARM64 1
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#else
#define DECANT_ARM64 0
#endif

namespace decant::inline DECANT_ABI {

/// The instruction sets that kernels are written for; of those that a machine runs, the last is taken unless another is
/// asked for (`Simd{SimdKernels{Isa::amx}}`). So two never are by themselves. `avx512_bf16` rounds activations to BF16
/// where weights are BF16, which pays on AMD's processors (Zen 4 on): they take as long for a pair of such products as
/// for one of floats. `amx` multiplies block formats as BF16 by tiles: it reads prompts much faster than AVX-512 and
/// decodes one sequence more slowly (docs/performance.md).
enum class Isa : std::uint8_t { portable, avx2, avx_vnni, amx, avx512_bf16, avx512_vnni, neon, neon_dotprod };

[[nodiscard]] constexpr std::string_view name(Isa isa) noexcept {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "AVX2";
        case Isa::avx_vnni: return "AVX-VNNI";
        case Isa::avx512_vnni: return "AVX-512 VNNI";
        case Isa::avx512_bf16: return "AVX-512 BF16";
        case Isa::amx: return "AMX";
        case Isa::neon: return "NEON";
        case Isa::neon_dotprod: return "NEON dotprod";
    }
    return "unknown";
}

#if DECANT_X86
namespace detail {

struct CpuId {
    std::uint32_t a, b, c, d;
};
[[nodiscard]] inline CpuId cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
    CpuId id{leaf, 0, subleaf, 0};
    asm volatile("cpuid" : "+a"(id.a), "=b"(id.b), "+c"(id.c), "=d"(id.d));
    return id;
}

// Features for which clang 14 has no name in __builtin_cpu_supports (Intel SDM, volume 2, CPUID).
[[nodiscard]] inline bool has_f16c() noexcept { return (cpuid(1).c >> 29 & 1) != 0; }
[[nodiscard]] inline bool has_avx_vnni() noexcept {
    return cpuid(0).a >= 7 && cpuid(7).a >= 1 && (cpuid(7, 1).a >> 4 & 1) != 0;
}
[[nodiscard]] inline bool has_avx512_vnni() noexcept {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
[[nodiscard]] inline bool has_avx512_bf16() noexcept {
    return has_avx512_vnni() && cpuid(7).a >= 1 && (cpuid(7, 1).a >> 5 & 1) != 0;
}

}  // namespace detail
#endif

#if DECANT_AMX
namespace detail {

/// AMX-TILE and AMX-BF16, of the processor and of a system that knows the tiles' state (XCR0 bits 17 and 18).
[[nodiscard]] inline bool has_amx() noexcept {
    constexpr std::uint32_t needed = 1u << 24 | 1u << 22;
    if ((cpuid(1).c >> 27 & 1) == 0 || cpuid(0).a < 7 || (cpuid(7).d & needed) != needed) return false;
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3;
}

// Linux, arch/x86/include/uapi/asm/prctl.h; the state of the tiles is component 18.
inline constexpr long arch_get_xcomp_perm = 0x1022;
inline constexpr long arch_req_xcomp_perm = 0x1023;
inline constexpr unsigned tile_data = 18;

[[nodiscard]] inline bool amx_allowed() noexcept {
    std::uint64_t components = 0;
    return syscall(SYS_arch_prctl, arch_get_xcomp_perm, &components) == 0 && (components >> tile_data & 1) != 0;
}

}  // namespace detail
#endif

/// Asks the system to let this process use AMX: `Isa::amx` is supported from then on. Without this call it is not, and
/// the library never makes it. It concerns the host because it holds for the whole process and for good: a thread that
/// has used AMX has 8 KB more of state, also on its stack during a signal, and Linux (5.16 or newer) refuses while an
/// alternate signal stack is too small for that. Fails with `unsupported` where processor or system have no AMX. Any
/// thread, any number of times.
inline Result<void> allow_amx() {
#if DECANT_AMX
    if (!detail::has_amx() || !detail::has_avx512_vnni())
        return Error{ErrorCode::unsupported, "processor or system lack AMX-BF16", "", "AVX-512 or AVX2 are used"};
    if (detail::amx_allowed()) return {};
    if (syscall(SYS_arch_prctl, detail::arch_req_xcomp_perm, static_cast<unsigned long>(detail::tile_data)) == 0)
        return {};
    const int reason = errno;
    return Error{ErrorCode::unsupported, detail::text("the system refuses AMX: errno ", reason), "",
                 reason == ENOSPC ? "make alternate signal stacks as large as getauxval(AT_MINSIGSTKSZ) says" : ""};
#else
    return Error{ErrorCode::unsupported, "AMX is used on Linux for x86-64 only", "", ""};
#endif
}

#if DECANT_ARM64
#if defined(_WIN32)
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
#endif
namespace detail {

[[nodiscard]] inline bool has_dotprod() noexcept {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    int has = 0;
    std::size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(43) != 0;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
#elif defined(__ARM_FEATURE_DOTPROD)
    return true;
#else
    return false;
#endif
}

}  // namespace detail
#endif

/// Whether this machine (processor and system) runs the set; AMX only after `allow_amx`.
[[nodiscard]] inline bool supported(Isa isa) noexcept {
#if DECANT_X86
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && detail::has_f16c();
    switch (isa) {
        case Isa::portable: return true;
        case Isa::avx2: return avx2;
        case Isa::avx_vnni: return avx2 && detail::has_avx_vnni();
        case Isa::avx512_vnni: return avx2 && detail::has_avx512_vnni();
        case Isa::avx512_bf16: return avx2 && detail::has_avx512_bf16();
        case Isa::amx:
#if DECANT_AMX
            return avx2 && detail::has_avx512_vnni() && detail::has_amx() && detail::amx_allowed();
#else
            return false;
#endif
        default: return false;
    }
#elif DECANT_ARM64
    return isa == Isa::portable || isa == Isa::neon || (isa == Isa::neon_dotprod && detail::has_dotprod());
#else
    return isa == Isa::portable;
#endif
}

}  // namespace decant::inline DECANT_ABI
