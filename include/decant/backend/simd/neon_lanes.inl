// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// What the lanes of neon.hpp share. Included once per set, inside its target region: g++ would not inline these
// functions there from outside if the host's flags ask for instructions that the region does not.

struct BaseLanes {
    // Sums and the integers of three rows of activations take 24 registers, four more hold codes.
    static constexpr std::size_t tile_panels = 1;
    static constexpr std::size_t tile_tokens = 3;
    static constexpr std::size_t few_tokens = 2;
    static constexpr std::size_t float_tile_tokens = 6;
    static constexpr std::size_t fused_tokens = 4;
    static constexpr bool keeps_sums = true;
    using Pairs = void;

    struct Words {
        uint32x4_t q0, q1, q2, q3;
    };
    struct Floats {
        float32x4_t q0, q1, q2, q3;
    };

    /// Codes of up to seven bits are signed bytes as they are.
    static constexpr bool signed_codes(int bits) noexcept { return bits > 7; }

    DECANT_ALWAYS_INLINE static Words load(const void* from) noexcept {
        const auto* const v = static_cast<const std::uint8_t*>(from);
        return {quarter(v), quarter(v + 16), quarter(v + 32), quarter(v + 48)};
    }
    DECANT_ALWAYS_INLINE static void store(void* to, Words v) noexcept {
        auto* const out = static_cast<std::uint8_t*>(to);
        vst1q_u8(out, vreinterpretq_u8_u32(v.q0));
        vst1q_u8(out + 16, vreinterpretq_u8_u32(v.q1));
        vst1q_u8(out + 32, vreinterpretq_u8_u32(v.q2));
        vst1q_u8(out + 48, vreinterpretq_u8_u32(v.q3));
    }
    DECANT_ALWAYS_INLINE static Words words(std::uint32_t x) noexcept { return all(vdupq_n_u32(x)); }
    DECANT_ALWAYS_INLINE static Words bit_and(Words a, Words b) noexcept {
        return {vandq_u32(a.q0, b.q0), vandq_u32(a.q1, b.q1), vandq_u32(a.q2, b.q2), vandq_u32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Words bit_or(Words a, Words b) noexcept {
        return {vorrq_u32(a.q0, b.q0), vorrq_u32(a.q1, b.q1), vorrq_u32(a.q2, b.q2), vorrq_u32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Words bit_xor(Words a, Words b) noexcept {
        return {veorq_u32(a.q0, b.q0), veorq_u32(a.q1, b.q1), veorq_u32(a.q2, b.q2), veorq_u32(a.q3, b.q3)};
    }
    template <int Bits>
    DECANT_ALWAYS_INLINE static Words left(Words v) noexcept {
        return {vshlq_n_u32(v.q0, Bits), vshlq_n_u32(v.q1, Bits), vshlq_n_u32(v.q2, Bits), vshlq_n_u32(v.q3, Bits)};
    }
    template <int Bits>
    DECANT_ALWAYS_INLINE static Words right(Words v) noexcept {
        // There is no such instruction for 0.
        if constexpr (Bits == 0) {
            return v;
        } else {
            return {vshrq_n_u32(v.q0, Bits), vshrq_n_u32(v.q1, Bits), vshrq_n_u32(v.q2, Bits), vshrq_n_u32(v.q3, Bits)};
        }
    }
    template <int Bits>
    DECANT_ALWAYS_INLINE static Words right_signed(Words v) noexcept {
        return {vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v.q0), Bits)),
                vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v.q1), Bits)),
                vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v.q2), Bits)),
                vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v.q3), Bits))};
    }
    DECANT_ALWAYS_INLINE static Words add(Words a, Words b) noexcept {
        return {vaddq_u32(a.q0, b.q0), vaddq_u32(a.q1, b.q1), vaddq_u32(a.q2, b.q2), vaddq_u32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Words times(Words a, Words b) noexcept {
        return {vmulq_u32(a.q0, b.q0), vmulq_u32(a.q1, b.q1), vmulq_u32(a.q2, b.q2), vmulq_u32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Words larger(Words a, Words b) noexcept {
        return {vmaxq_u32(a.q0, b.q0), vmaxq_u32(a.q1, b.q1), vmaxq_u32(a.q2, b.q2), vmaxq_u32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static std::uint32_t largest(Words v) noexcept {
        return vmaxvq_u32(vmaxq_u32(vmaxq_u32(v.q0, v.q1), vmaxq_u32(v.q2, v.q3)));
    }
    DECANT_ALWAYS_INLINE static std::int32_t sum(Words v) noexcept {
        return static_cast<std::int32_t>(vaddvq_u32(vaddq_u32(vaddq_u32(v.q0, v.q1), vaddq_u32(v.q2, v.q3))));
    }
    DECANT_ALWAYS_INLINE static Words broadcast(const void* word) noexcept {
        std::uint32_t x;
        __builtin_memcpy(&x, word, sizeof x);
        return words(x);
    }
    DECANT_ALWAYS_INLINE static Words subtract_bytes(Words a, Words b) noexcept {
        return {vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a.q0), vreinterpretq_u8_u32(b.q0))),
                vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a.q1), vreinterpretq_u8_u32(b.q1))),
                vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a.q2), vreinterpretq_u8_u32(b.q2))),
                vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a.q3), vreinterpretq_u8_u32(b.q3)))};
    }

    DECANT_ALWAYS_INLINE static void columns(const std::byte* first, std::size_t stride, Words* out) noexcept {
        uint32x4_t q0[4], q1[4], q2[4], q3[4];
        columns_of_4(first, stride, q0);
        columns_of_4(first + 4 * stride, stride, q1);
        columns_of_4(first + 8 * stride, stride, q2);
        columns_of_4(first + 12 * stride, stride, q3);
        DECANT_UNROLL
        for (int i = 0; i < 4; ++i) out[i] = {q0[i], q1[i], q2[i], q3[i]};
    }

    DECANT_ALWAYS_INLINE static Floats floats(float x) noexcept { return all(vdupq_n_f32(x)); }
    DECANT_ALWAYS_INLINE static Floats load_floats(const float* from) noexcept {
        return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
    }
    DECANT_ALWAYS_INLINE static void store_floats(float* to, Floats v) noexcept {
        vst1q_f32(to, v.q0);
        vst1q_f32(to + 4, v.q1);
        vst1q_f32(to + 8, v.q2);
        vst1q_f32(to + 12, v.q3);
    }
    static Floats load_some(const float* from, std::size_t n) noexcept {
        float values[panel_rows] = {};
        __builtin_memcpy(values, from, n * sizeof(float));
        return load_floats(values);
    }
    static void store_some(float* to, Floats v, std::size_t n) noexcept {
        float values[panel_rows];
        store_floats(values, v);
        __builtin_memcpy(to, values, n * sizeof(float));
    }
    DECANT_ALWAYS_INLINE static Floats add(Floats a, Floats b) noexcept {
        return {vaddq_f32(a.q0, b.q0), vaddq_f32(a.q1, b.q1), vaddq_f32(a.q2, b.q2), vaddq_f32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats subtract(Floats a, Floats b) noexcept {
        return {vsubq_f32(a.q0, b.q0), vsubq_f32(a.q1, b.q1), vsubq_f32(a.q2, b.q2), vsubq_f32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats times(Floats a, Floats b) noexcept {
        return {vmulq_f32(a.q0, b.q0), vmulq_f32(a.q1, b.q1), vmulq_f32(a.q2, b.q2), vmulq_f32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats over(Floats a, Floats b) noexcept {
        return {vdivq_f32(a.q0, b.q0), vdivq_f32(a.q1, b.q1), vdivq_f32(a.q2, b.q2), vdivq_f32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats multiply_add(Floats a, Floats b, Floats c) noexcept {
        return {vfmaq_f32(c.q0, a.q0, b.q0), vfmaq_f32(c.q1, a.q1, b.q1), vfmaq_f32(c.q2, a.q2, b.q2),
                vfmaq_f32(c.q3, a.q3, b.q3)};
    }
    /// b where a is no number, as the instructions of x86 have it.
    DECANT_ALWAYS_INLINE static Floats larger(Floats a, Floats b) noexcept {
        return {vbslq_f32(vcgtq_f32(a.q0, b.q0), a.q0, b.q0), vbslq_f32(vcgtq_f32(a.q1, b.q1), a.q1, b.q1),
                vbslq_f32(vcgtq_f32(a.q2, b.q2), a.q2, b.q2), vbslq_f32(vcgtq_f32(a.q3, b.q3), a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats smaller(Floats a, Floats b) noexcept {
        return {vbslq_f32(vcltq_f32(a.q0, b.q0), a.q0, b.q0), vbslq_f32(vcltq_f32(a.q1, b.q1), a.q1, b.q1),
                vbslq_f32(vcltq_f32(a.q2, b.q2), a.q2, b.q2), vbslq_f32(vcltq_f32(a.q3, b.q3), a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats magnitude(Floats v) noexcept {
        return {vabsq_f32(v.q0), vabsq_f32(v.q1), vabsq_f32(v.q2), vabsq_f32(v.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats swapped_pairs(Floats v) noexcept {
        return {vrev64q_f32(v.q0), vrev64q_f32(v.q1), vrev64q_f32(v.q2), vrev64q_f32(v.q3)};
    }
    DECANT_ALWAYS_INLINE static void interleave(Floats a, Floats b, Floats* to) noexcept {
        to[0] = {vzip1q_f32(a.q0, b.q0), vzip2q_f32(a.q0, b.q0), vzip1q_f32(a.q1, b.q1), vzip2q_f32(a.q1, b.q1)};
        to[1] = {vzip1q_f32(a.q2, b.q2), vzip2q_f32(a.q2, b.q2), vzip1q_f32(a.q3, b.q3), vzip2q_f32(a.q3, b.q3)};
    }
    DECANT_ALWAYS_INLINE static float sum(Floats v) noexcept {
        return vaddvq_f32(vaddq_f32(vaddq_f32(v.q0, v.q1), vaddq_f32(v.q2, v.q3)));
    }
    DECANT_ALWAYS_INLINE static float largest(Floats v) noexcept {
        return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.q0, v.q1), vmaxq_f32(v.q2, v.q3)));
    }

    DECANT_ALWAYS_INLINE static Floats to_floats(Words v) noexcept {
        return {vcvtq_f32_s32(vreinterpretq_s32_u32(v.q0)), vcvtq_f32_s32(vreinterpretq_s32_u32(v.q1)),
                vcvtq_f32_s32(vreinterpretq_s32_u32(v.q2)), vcvtq_f32_s32(vreinterpretq_s32_u32(v.q3))};
    }
    DECANT_ALWAYS_INLINE static Words nearest(Floats v) noexcept {
        return {vreinterpretq_u32_s32(vcvtnq_s32_f32(v.q0)), vreinterpretq_u32_s32(vcvtnq_s32_f32(v.q1)),
                vreinterpretq_u32_s32(vcvtnq_s32_f32(v.q2)), vreinterpretq_u32_s32(vcvtnq_s32_f32(v.q3))};
    }
    DECANT_ALWAYS_INLINE static Floats as_floats(Words v) noexcept {
        return {vreinterpretq_f32_u32(v.q0), vreinterpretq_f32_u32(v.q1), vreinterpretq_f32_u32(v.q2),
                vreinterpretq_f32_u32(v.q3)};
    }
    DECANT_ALWAYS_INLINE static Words as_words(Floats v) noexcept {
        return {vreinterpretq_u32_f32(v.q0), vreinterpretq_u32_f32(v.q1), vreinterpretq_u32_f32(v.q2),
                vreinterpretq_u32_f32(v.q3)};
    }
    DECANT_ALWAYS_INLINE static Floats halves(const void* from) noexcept {
        const auto* const v = static_cast<const std::uint8_t*>(from);
        return {four_halves(v), four_halves(v + 8), four_halves(v + 16), four_halves(v + 24)};
    }
    DECANT_ALWAYS_INLINE static Floats low_halves(Words v) noexcept {
        return {
            vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v.q0))), vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v.q1))),
            vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v.q2))), vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v.q3)))};
    }
    DECANT_ALWAYS_INLINE static void store_halves(void* to, Floats v) noexcept {
        auto* const out = static_cast<std::uint8_t*>(to);
        vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(v.q0)));
        vst1_u8(out + 8, vreinterpret_u8_f16(vcvt_f16_f32(v.q1)));
        vst1_u8(out + 16, vreinterpret_u8_f16(vcvt_f16_f32(v.q2)));
        vst1_u8(out + 24, vreinterpret_u8_f16(vcvt_f16_f32(v.q3)));
    }
    DECANT_ALWAYS_INLINE static void store_bytes(void* to, Words v) noexcept {
        const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(v.q0), vreinterpretq_u16_u32(v.q1));
        const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(v.q2), vreinterpretq_u16_u32(v.q3));
        vst1q_u8(static_cast<std::uint8_t*>(to), vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
    }

 private:
    DECANT_ALWAYS_INLINE static Words all(uint32x4_t v) noexcept { return {v, v, v, v}; }
    DECANT_ALWAYS_INLINE static Floats all(float32x4_t v) noexcept { return {v, v, v, v}; }
    DECANT_ALWAYS_INLINE static uint32x4_t quarter(const std::uint8_t* from) noexcept {
        return vreinterpretq_u32_u8(vld1q_u8(from));
    }
    DECANT_ALWAYS_INLINE static float32x4_t four_halves(const std::uint8_t* from) noexcept {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
    }
    DECANT_ALWAYS_INLINE static void columns_of_4(const std::byte* first, std::size_t stride,
                                                  uint32x4_t* out) noexcept {
        const auto* const rows = reinterpret_cast<const std::uint8_t*>(first);
        const uint32x4_t a = quarter(rows), b = quarter(rows + stride);
        const uint32x4_t c = quarter(rows + 2 * stride), d = quarter(rows + 3 * stride);
        const uint64x2_t ab = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), cd = vreinterpretq_u64_u32(vtrn1q_u32(c, d));
        const uint64x2_t ab2 = vreinterpretq_u64_u32(vtrn2q_u32(a, b)), cd2 = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
        out[0] = vreinterpretq_u32_u64(vtrn1q_u64(ab, cd));
        out[1] = vreinterpretq_u32_u64(vtrn1q_u64(ab2, cd2));
        out[2] = vreinterpretq_u32_u64(vtrn2q_u64(ab, cd));
        out[3] = vreinterpretq_u32_u64(vtrn2q_u64(ab2, cd2));
    }
};
