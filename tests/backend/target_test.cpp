// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/backend/simd/target.hpp>

#include "support/catch.hpp"

#include <decant/backend/simd/simd.hpp>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

using decant::Isa;

TEST_CASE("target: every set has a name of its own") {
    CHECK(decant::name(Isa::portable) == "portable");
    CHECK(decant::name(Isa::avx2) == "AVX2");
    CHECK(decant::name(Isa::avx_vnni) == "AVX-VNNI");
    CHECK(decant::name(Isa::avx512_vnni) == "AVX-512 VNNI");
    CHECK(decant::name(Isa::neon) == "NEON");
    CHECK(decant::name(Isa::neon_dotprod) == "NEON dotprod");
    CHECK(decant::name(Isa::avx512_bf16) == "AVX-512 BF16");
    CHECK(decant::name(Isa::amx) == "AMX");
}

TEST_CASE("target: every machine runs the portable set, and a better set implies the worse") {
    CHECK(decant::supported(Isa::portable));
    CHECK((!decant::supported(Isa::avx_vnni) || decant::supported(Isa::avx2)));
    CHECK((!decant::supported(Isa::avx512_vnni) || decant::supported(Isa::avx2)));
    CHECK((!decant::supported(Isa::amx) || decant::supported(Isa::avx512_vnni)));
}

#if defined(__linux__) && DECANT_X86
TEST_CASE("target: support is what the system reports") {
    std::ifstream in("/proc/cpuinfo");
    std::string line;
    std::set<std::string> flags;
    while (flags.empty() && std::getline(in, line)) {
        if (!line.starts_with("flags")) continue;
        std::istringstream words(line);
        flags = {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
    }
    REQUIRE(!flags.empty());
    const bool avx2 = flags.contains("avx2") && flags.contains("fma") && flags.contains("f16c");
    CHECK(decant::supported(Isa::avx2) == avx2);
    CHECK(decant::supported(Isa::avx_vnni) == (avx2 && flags.contains("avx_vnni")));
    CHECK(decant::supported(Isa::avx512_vnni) ==
          (avx2 && flags.contains("avx512f") && flags.contains("avx512bw") && flags.contains("avx512vl") &&
           flags.contains("avx512dq") && flags.contains("avx512_vnni")));
    CHECK(decant::supported(Isa::avx512_bf16) ==
          (decant::supported(Isa::avx512_vnni) && flags.contains("avx512_bf16")));
}
#endif

TEST_CASE("target: a backend of several sets runs the best that the machine has") {
    const auto isa_of = [](const auto& backend) { return backend.pass(1).kernels().isa(); };
    CHECK(isa_of(decant::BasicSimd<decant::simd::Portable>{}) == Isa::portable);
    Isa best = Isa::portable;
    for (const Isa isa : {Isa::avx2, Isa::avx_vnni, Isa::avx512_bf16, Isa::avx512_vnni, Isa::neon, Isa::neon_dotprod})
        if (decant::supported(isa)) best = isa;
    CHECK(isa_of(decant::Simd{}) == best);
#if DECANT_X86
    CHECK(isa_of(decant::BasicSimd<decant::simd::Portable, decant::simd::Avx2>{}) ==
          (decant::supported(Isa::avx2) ? Isa::avx2 : Isa::portable));
    CHECK(isa_of(decant::BasicSimd<decant::simd::Avx512Bf16, decant::simd::Avx512Vnni, decant::simd::AvxVnni,
                                   decant::simd::Avx2, decant::simd::Portable>{}) == best);
#endif
}
