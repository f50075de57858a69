// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// All products and attention kernels of the sets with registers of their own, for `.ci/run spills` to look at.

#include <decant/backend/simd/avx2.hpp>
#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/avx512_bf16.hpp>
#include <decant/quant/formats.hpp>

#include <cstddef>
#include <type_traits>

namespace {

using namespace decant;

template <class Set>
void compile(const simd::WeightRows& rows, const void* x, std::size_t tokens, float* sums, std::byte* scratch,
             DType dtype, const simd::AttentionRows& attention) {
    visit_format(dtype, [&]<class Format>(Format) {
        using X = std::conditional_t<CodeFormat<Format>, simd::ActivationBlock, float>;
        Set::template multiply<Format>(rows, static_cast<const X* const*>(x), tokens, sums, scratch);
    });
    Set::attend(attention, sums);
}

}  // namespace

void compile_kernels(const simd::WeightRows& rows, const void* x, std::size_t tokens, float* sums, std::byte* scratch,
                     DType dtype, const simd::AttentionRows& attention) {
    compile<simd::Avx2>(rows, x, tokens, sums, scratch, dtype, attention);
    compile<simd::AvxVnni>(rows, x, tokens, sums, scratch, dtype, attention);
    compile<simd::Avx512Bf16>(rows, x, tokens, sums, scratch, dtype, attention);
}
