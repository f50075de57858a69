// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The kernels of an instruction set in terms of its `Lanes` (lanes.hpp). Included once per set, in a namespace of its
// own and inside its target region: only what is defined there is compiled to its instructions. Raw pointers only.

/// Tells how a format's blocks lie in its rows: `run(first, stride, columns, sink)` hands `columns` columns of 16 rows,
/// `stride` bytes apart, block by block to a sink: `begin<bytes>()`, `codes(group, words)` for each group of the panel
/// block in order, `end(scales)` or `end(scales, offsets)`. Float formats hand over `column(values)`. `approach(first,
/// stride)` tells that a line of each row is about to be read. Up to 15 bytes behind the columns are read too.
template <class Format>
struct Unpacker;

/// Has a line of each of 16 rows fetched to the first cache.
DECANT_ALWAYS_INLINE void prefetch_rows(const std::byte* first, std::size_t stride) noexcept {
    DECANT_OPAQUE(first);
    DECANT_UNROLL
    for (std::size_t r = 0; r < 4; ++r, first += stride) {
        __builtin_prefetch(first, 0, 3);
        __builtin_prefetch(first + 4 * stride, 0, 3);
        __builtin_prefetch(first + 8 * stride, 0, 3);
        __builtin_prefetch(first + 12 * stride, 0, 3);
    }
}

/// Base of the sinks of panels, which are fetched from memory beforehand: what is read a few lines later is brought
/// from the second cache to the first.
struct FromCache {
    DECANT_ALWAYS_INLINE static void approach(const std::byte* first, std::size_t stride) noexcept {
        constexpr std::size_t ahead = 192;
        prefetch_rows(first + ahead, stride);
    }
};

/// Blocks of `Size` bytes of 16 rows, four at a time: registers of words need not begin where a block does.
template <std::size_t Size>
class Span {
 public:
    static constexpr std::size_t blocks = 4;

    /// Hands `count` blocks of 16 rows to `Format::block<At>(span, sink)`, which begin at byte `At` of the span.
    template <class Format, class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t count,
                                         Sink& to) noexcept {
        for (; count > 0; first += blocks * Size) {
            const std::size_t n = count < blocks ? count : blocks;
            Span span(first, stride);
            span.step<Format, 0>(n, to);
            count -= n;
        }
    }

    /// The four bytes at `Byte` of the blocks, of each row.
    template <std::size_t Byte>
    DECANT_ALWAYS_INLINE Lanes::Words word() const noexcept {
        static_assert(Byte % 2 == 0);
        if constexpr (Byte % 4 == 0)
            return words_[Byte / 4];
        else
            return Lanes::bit_or(Lanes::template right<16>(words_[Byte / 4]),
                                 Lanes::template left<16>(words_[Byte / 4 + 1]));
    }
    /// The F16 at `Byte`.
    template <std::size_t Byte>
    DECANT_ALWAYS_INLINE Lanes::Floats half() const noexcept {
        static_assert(Byte % 2 == 0);
        if constexpr (Byte % 4 == 0)
            return Lanes::low_halves(words_[Byte / 4]);
        else
            return Lanes::low_halves(Lanes::template right<16>(words_[Byte / 4]));
    }

 private:
    static_assert(Size % 2 == 0);
    static constexpr std::size_t bytes = (blocks * Size + 15) / 16 * 16;
    Span(const std::byte* first, std::size_t stride) noexcept : first_(first), stride_(stride) {}

    template <class Format, std::size_t B, class Sink>
    DECANT_ALWAYS_INLINE void step(std::size_t count, Sink& to) noexcept {
        if constexpr (B < blocks) {
            if (B == count) return;
            load<(B * Size + 15) / 16, ((B + 1) * Size + 15) / 16>(to);
            to.template begin<panel_rows * Size>();
            Format::template block<B * Size>(*this, to);
            step<Format, B + 1>(count, to);
        }
    }
    /// Registers of words [4 From, 4 End).
    template <std::size_t From, std::size_t End, class Sink>
    DECANT_ALWAYS_INLINE void load(Sink& to) noexcept {
        if constexpr (From < End) {
            if constexpr (From % 4 == 0) to.approach(first_ + 16 * From, stride_);
            Lanes::columns(first_ + 16 * From, stride_, words_ + 4 * From);
            load<From + 1, End>(to);
        }
    }

    const std::byte* first_;
    std::size_t stride_;
    Lanes::Words words_[bytes / 4];
};

/// Base of the unpackers that read blocks by `Span`.
template <class Format>
struct ByBlocks {
    static constexpr std::size_t size = sizeof(typename Format::Block);
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        Span<size>::template run<Unpacker<Format>>(first, stride, columns / 32, to);
    }
};

#include <decant/quant/floats.inl>
#include <decant/quant/k_quants.inl>
#include <decant/quant/q4.inl>
#include <decant/quant/q5.inl>
#include <decant/quant/q8.inl>

// ---- the float step, which all paths share

/// Codes as the set multiplies them, or as signed bytes.
template <class Format, bool Signed = Lanes::signed_codes(Format::code_bits)>
DECANT_ALWAYS_INLINE Lanes::Words multiplied(Lanes::Words codes) noexcept {
    if constexpr (Signed && Format::bias != 0)
        return Lanes::subtract_bytes(codes, Lanes::words(Format::bias * 0x01010101u));
    return codes;
}

/// What the integer sum of a panel block begins with: codes that carry a bias are multiplied as they are.
template <class Format>
DECANT_ALWAYS_INLINE Lanes::Words start(const ActivationBlock& x, std::size_t half) noexcept {
    if constexpr (Lanes::signed_codes(Format::code_bits) || Format::bias == 0) {
        return Lanes::words(0);
    } else {
        if constexpr (Format::panel_block == activation_half) {
            return Lanes::words(static_cast<std::uint32_t>(Format::bias * x.negative_half_sums[half]));
        } else {
            constexpr int shift = std::bit_width(static_cast<unsigned>(Format::bias)) - 1;
            static_assert(1 << shift == Format::bias);
            return Lanes::left<shift>(Lanes::broadcast(&x.negative_sum));
        }
    }
}

/// sum + codes times the same word of activations in all lanes.
template <int Bits, class Set = Lanes>
DECANT_ALWAYS_INLINE Lanes::Words dot_word(Lanes::Words sum, Lanes::Words codes, const void* x) noexcept {
    if constexpr (requires { Set::dot_word(sum, codes, x); })
        return Set::dot_word(sum, codes, x);
    else
        return Set::template dot<Bits>(sum, codes, Set::broadcast(x));
}

DECANT_ALWAYS_INLINE Lanes::Floats scaled(Lanes::Words dots, Lanes::Floats scales, float scale,
                                          Lanes::Floats y) noexcept {
    return Lanes::multiply_add(Lanes::to_floats(dots), Lanes::times(scales, Lanes::floats(scale)), y);
}

// ---- sinks

inline constexpr std::size_t cache_line = 64;

/// Has what is unpacked next fetched from memory, in the order in which it lies there.
struct Fetch {
    const std::byte* next;

    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void run() noexcept {
        DECANT_UNROLL
        for (std::size_t at = 0; at < Bytes; at += cache_line) __builtin_prefetch(next + at, 0, 2);
        next += Bytes;
    }
};

/// For products that have it fetched while they multiply.
struct NoFetch {
    explicit NoFetch(const std::byte*) noexcept {}
    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void run() noexcept {}
};

/// Base of the sinks that multiply at once. Each row of a panel is the first of a run of rows, from which the next
/// panels take the others (see `RowTile::few`): sixteen streams, of which each goes on where the next run begins.
struct FromMemory {
    const std::byte* last;  // the end of the first run
    std::ptrdiff_t onward;

    DECANT_ALWAYS_INLINE void approach(const std::byte* first, std::size_t stride) const noexcept {
        constexpr std::size_t ahead = 512;
        first += ahead;
        if (first >= last) first += onward;
        prefetch_rows(first, stride);
    }
};

/// Writes a panel.
template <class Format, class Ahead>
struct ToPanel : FromCache {
    CodePanel panel;
    Ahead fetch;

    ToPanel(CodePanel to, Ahead ahead) noexcept : panel(to), fetch(ahead) {}

    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void begin() noexcept {
        fetch.template run<Bytes>();
    }
    DECANT_ALWAYS_INLINE void codes(std::size_t g, Lanes::Words w) noexcept {
        Lanes::store(panel.codes + g * panel_rows * panel_group, multiplied<Format>(w));
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales) noexcept {
        Lanes::store_floats(panel.scales, scales);
        panel.codes += Format::panel_block * panel_rows;
        panel.scales += panel_rows;
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales, Lanes::Floats offsets) noexcept {
        Lanes::store_floats(panel.offsets, offsets);
        panel.offsets += panel_rows;
        end(scales);
    }
};

/// Multiplies what is unpacked by a few tokens at once, with no panel in memory.
template <class Format, std::size_t Tokens>
struct Product : FromMemory {
    const ActivationBlock* x[Tokens];
    Lanes::Floats y[Tokens];
    Lanes::Words dots[Tokens];
    std::size_t half = 0;

    explicit Product(FromMemory memory) noexcept : FromMemory(memory) {}

    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void begin() noexcept {
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) dots[t] = start<Format>(*x[t], half);
    }
    DECANT_ALWAYS_INLINE void codes(std::size_t g, Lanes::Words w) noexcept {
        const Lanes::Words signed_or_not = multiplied<Format>(w);
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t)
            dots[t] = dot_word<Format::code_bits>(dots[t], signed_or_not,
                                                  x[t]->codes + half * activation_half + g * panel_group);
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales) noexcept {
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) y[t] = scaled(dots[t], scales, x[t]->scale, y[t]);
        advance();
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales, Lanes::Floats offsets) noexcept {
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t)
            y[t] = Lanes::multiply_add(offsets, Lanes::floats(x[t]->weighted_sum),
                                       scaled(dots[t], scales, x[t]->scale, y[t]));
        advance();
    }

 private:
    DECANT_ALWAYS_INLINE void advance() noexcept {
        if constexpr (Format::panel_block == activation_half) {
            half ^= 1;
            if (half != 0) return;
        }
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) ++x[t];
    }
};

/// Writes a panel of floats.
struct ToFloatPanel : FromCache {
    float* values;
    Fetch fetch;

    ToFloatPanel(float* to, Fetch ahead) noexcept : values(to), fetch(ahead) {}

    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void begin() noexcept {
        fetch.run<Bytes>();
    }
    DECANT_ALWAYS_INLINE void column(Lanes::Floats v) noexcept {
        Lanes::store_floats(values, v);
        values += panel_rows;
    }
};

/// Multiplies columns of floats by a few tokens at once.
template <std::size_t Tokens>
struct FloatProduct : FromMemory {
    const float* x[Tokens];
    Lanes::Floats y[Tokens];
    std::size_t c = 0;

    explicit FloatProduct(FromMemory memory) noexcept : FromMemory(memory) {}

    template <std::size_t Bytes>
    DECANT_ALWAYS_INLINE void begin() noexcept {}
    DECANT_ALWAYS_INLINE void column(Lanes::Floats w) noexcept {
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) y[t] = Lanes::multiply_add(w, Lanes::floats(x[t][c]), y[t]);
        ++c;
    }
};

/// Hands `columns` columns of 16 rows of a float format to a sink.
template <class Format, class Sink>
DECANT_ALWAYS_INLINE void unpack_floats(const std::byte* first, std::size_t stride, std::size_t columns,
                                        Sink& to) noexcept {
    constexpr std::size_t each = Unpacker<Format>::each;
    Lanes::Words w[4];
    for (; columns >= each; columns -= each, first += 16) {
        if (columns / each % 4 == 0) to.approach(first, stride);
        to.template begin<16 * panel_rows>();
        Lanes::columns(first, stride, w);
        DECANT_UNROLL
        for (std::size_t i = 0; i < each; ++i) to.column(Unpacker<Format>::column(w, i));
    }
    if (columns == 0) return;
    std::byte rest[panel_rows * 16] = {};
    for (std::size_t r = 0; r < panel_rows; ++r)
        __builtin_memcpy(rest + 16 * r, first + r * stride, columns * (16 / each));
    Lanes::columns(rest, 16, w);
    for (std::size_t i = 0; i < columns; ++i) to.column(Unpacker<Format>::column(w, i));
}

// ---- products

inline void clear_floats(float* to, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; i += panel_rows) Lanes::store_floats(to + i, Lanes::floats(0.0f));
}

inline void copy_floats(const float* from, float* to, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; i += panel_rows) Lanes::store_floats(to + i, Lanes::load_floats(from + i));
}

/// Panel blocks from one panel of a tile to the next.
template <class Format>
inline constexpr std::size_t apart = piece_columns / Format::panel_block;

/// sums[t][16 p + r] += products of the rows of Panels panels with Tokens rows of activations. Meanwhile `lines` cache
/// lines from `next` on are fetched per block.
template <class Format, std::size_t Panels, std::size_t Tokens>
void multiply_panels(CodePanel panel, std::size_t columns, const ActivationBlock* const* rows, const std::byte* next,
                     std::size_t lines, float* sums) noexcept {
    constexpr std::size_t block = Format::panel_block;
    const ActivationBlock* x[Tokens];
    Lanes::Floats y[Panels][Tokens];
    DECANT_UNROLL
    for (std::size_t t = 0; t < Tokens; ++t) x[t] = rows[t];
    if constexpr (Lanes::keeps_sums) {
        DECANT_UNROLL
        for (std::size_t p = 0; p < Panels; ++p) DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) y[p][t] = Lanes::load_floats(sums + t * tile_rows + p * panel_rows);
    }
    const std::uint8_t* codes = panel.codes;
    const float* scales = panel.scales;
    const float* offsets = panel.offsets;
    std::size_t at = 0;
    for (std::size_t b = 0; b < columns / block; ++b) {
        const std::size_t half = block == activation_half ? b % 2 : 0;
        for (std::size_t i = 0; i < lines; ++i, next += cache_line) __builtin_prefetch(next, 0, 2);
        Lanes::Words dots[Panels][Tokens];
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) {
            const Lanes::Words from = start<Format>(x[t][at], half);
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) dots[p][t] = from;
        }
        DECANT_UNROLL
        for (std::size_t g = 0; g < block / panel_group; ++g) {
            Lanes::Words w[Panels];
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p)
                w[p] = Lanes::load(codes + (p * apart<Format> * block + g * panel_group) * panel_rows);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                const Lanes::Words four = Lanes::broadcast(x[t][at].codes + half * activation_half + g * panel_group);
                DECANT_UNROLL
                for (std::size_t p = 0; p < Panels; ++p)
                    dots[p][t] = Lanes::template dot<Format::code_bits>(dots[p][t], w[p], four);
            }
        }
        DECANT_UNROLL
        for (std::size_t p = 0; p < Panels; ++p) {
            const Lanes::Floats scale = Lanes::load_floats(scales + p * apart<Format> * panel_rows);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                float* const sum = sums + t * tile_rows + p * panel_rows;
                Lanes::Floats before = Lanes::keeps_sums ? y[p][t] : Lanes::load_floats(sum);
                before = scaled(dots[p][t], scale, x[t][at].scale, before);
                if constexpr (Format::has_offset)
                    before = Lanes::multiply_add(Lanes::load_floats(offsets + p * apart<Format> * panel_rows),
                                                 Lanes::floats(x[t][at].weighted_sum), before);
                if constexpr (Lanes::keeps_sums)
                    y[p][t] = before;
                else
                    Lanes::store_floats(sum, before);
            }
        }
        codes += block * panel_rows;
        scales += panel_rows;
        offsets += panel_rows;
        if (block == activation_block || half == 1) ++at;
    }
    if constexpr (Lanes::keeps_sums) {
        DECANT_UNROLL
        for (std::size_t p = 0; p < Panels; ++p) DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) Lanes::store_floats(sums + t * tile_rows + p * panel_rows, y[p][t]);
    }
}

/// The same for panels of floats: column by column, one sum for each result. What comes next, `ahead`, is fetched
/// meanwhile: many rows of floats are more than the first caches hold.
template <std::size_t Panels, std::size_t Tokens>
void multiply_float_panels(const float* values, std::size_t columns, const float* const* rows,
                           const float* const* ahead, float* sums) noexcept {
    constexpr std::size_t line = cache_line / sizeof(float);
    constexpr std::size_t apart = panel_rows * float_piece_columns;
    const float* x[Tokens];
    Lanes::Floats y[Panels][Tokens];
    DECANT_UNROLL
    for (std::size_t t = 0; t < Tokens; ++t) {
        x[t] = rows[t];
        DECANT_UNROLL
        for (std::size_t p = 0; p < Panels; ++p) y[p][t] = Lanes::load_floats(sums + t * tile_rows + p * panel_rows);
    }
    for (std::size_t c = 0; c < columns; ++c, values += panel_rows) {
        if (c % line == 0) {
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) __builtin_prefetch(ahead[t] + c, 0, 3);
        }
        Lanes::Floats w[Panels];
        DECANT_UNROLL
        for (std::size_t p = 0; p < Panels; ++p) w[p] = Lanes::load_floats(values + p * apart);
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) {
            const Lanes::Floats value = Lanes::floats(x[t][c]);
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) y[p][t] = Lanes::multiply_add(w[p], value, y[p][t]);
        }
    }
    DECANT_UNROLL
    for (std::size_t p = 0; p < Panels; ++p) DECANT_UNROLL
    for (std::size_t t = 0; t < Tokens; ++t) Lanes::store_floats(sums + t * tile_rows + p * panel_rows, y[p][t]);
}

/// Tokens that are multiplied with no panel in memory.
inline constexpr std::size_t most_few = Lanes::fused_tokens;

/// The products of one tile of rows of a weight with rows of activations.
template <class Format>
struct RowTile {
    static constexpr bool is_float = FloatFormat<Format>;
    using X = std::conditional_t<is_float, float, ActivationBlock>;

    /// Columns that are unpacked at a time: as even parts as the format's blocks, or eight of them, allow.
    static std::size_t piece_of(std::size_t columns) noexcept {
        constexpr std::size_t block = is_float ? 8 : 256;
        if (!is_float && columns <= piece_columns) return piece_columns;
        constexpr std::size_t most = is_float ? float_piece_columns : piece_columns / block * block;
        const std::size_t count = (columns + most - 1) / most;
        return (columns + count * block - 1) / (count * block) * block;
    }

    /// sums[t][most_rows of the set] = products of the rows with x[t]; `tokens` at least 1.
    static void multiply(const WeightRows& w, const X* const* x, std::size_t tokens, float* sums,
                         std::byte* scratch) noexcept {
        if constexpr (most_few > 0)
            if (tokens <= most_few) return multiply_few(w, x, tokens, sums, scratch);
        for (std::size_t t = 0; t < tokens; ++t) clear_floats(sums + t * tile_rows, tile_rows);
        const std::size_t piece = piece_of(w.columns);
        // Of the next tile.
        const std::byte* next = w.first + tile_rows * w.row_bytes;
        std::conditional_t<is_float, Fetch, NoFetch> fetch{next};
        for (std::size_t k = 0; k < w.columns; k += piece) {
            const std::size_t n = w.columns - k < piece ? w.columns - k : piece;
            for (std::size_t p = 0; p < tile_rows / panel_rows; ++p) {
                const Source source(w, p * panel_rows < w.count ? p * panel_rows : 0, 1, k, n, scratch + panels_bytes);
                unpack(source.first, source.stride, n, panel(scratch, p), fetch);
            }
            add(w, x, tokens, k, n, next, sums, scratch);
        }
    }

    template <class Panel, class Ahead>
    static void unpack(const std::byte* first, std::size_t stride, std::size_t columns, Panel to,
                       Ahead& fetch) noexcept {
        if constexpr (is_float) {
            ToFloatPanel sink{to, fetch};
            unpack_floats<Format>(first, stride, columns, sink);
            fetch = sink.fetch;
        } else {
            ToPanel<Format, Ahead> sink{to, fetch};
            Unpacker<Format>::run(first, stride, columns, sink);
            fetch = sink.fetch;
        }
    }

    /// Where columns [k, k + n) lie of the panel of rows r, r + apart, r + 2 apart and so on: in the file, or, where
    /// there are no 16 or nothing may be read behind them, in `copy`.
    struct Source {
        const std::byte* first;
        std::size_t stride;
        Source(const WeightRows& w, std::size_t r, std::size_t apart, std::size_t k, std::size_t n,
               std::byte* copy) noexcept
            : first(w.first + r * w.row_bytes + k / layout.block_elements * layout.block_bytes),
              stride(apart * w.row_bytes) {
            if (in_place(w, r, apart)) return;
            const std::size_t rows = (w.count - r - 1) / apart + 1;
            const std::size_t bytes = n / layout.block_elements * layout.block_bytes;
            for (std::size_t i = 0; i < panel_rows; ++i)
                __builtin_memcpy(copy + i * bytes, first + (i < rows ? i : 0) * stride, bytes);
            first = copy;
            stride = bytes;
        }
        static bool in_place(const WeightRows& w, std::size_t r, std::size_t apart) noexcept {
            const std::size_t last = r + (panel_rows - 1) * apart;
            return w.more ? last < w.count : last + 1 < w.count;
        }

     private:
        static constexpr DTypeTraits layout = traits(Format::dtype);
    };

    /// Columns of the rows of a panel that are unpacked at once, with no panel in memory: all, unless they are copied.
    static std::size_t piece_at_once(const WeightRows& w, std::size_t r, std::size_t apart) noexcept {
        return Source::in_place(w, r, apart) ? w.columns : piece_of(w.columns);
    }

    /// The rows in runs, 16 of equal length at a time: a panel is made of one row of each, so that memory is read as 16
    /// streams, which the hardware follows, and not as 16 rows side by side.
    /// `panel(w, r, apart, memory, sums)` does sums[t][i] = products of row r + i * apart.
    template <class Panel>
    static void few(const WeightRows& w, std::size_t tokens, float* sums, const Panel& panel) noexcept {
        for (std::size_t r = 0, length; r < w.count; r += length * panel_rows) {
            length = wide_tile_rows / panel_rows;
            while (length > 1 && r + length * panel_rows > w.count) length /= 2;
            const std::byte* const end = w.first + (r + length) * w.row_bytes;
            const std::size_t after = r + length * panel_rows;
            const bool done = after >= w.count && w.next != nullptr;
            const std::byte* const next = done ? w.next : w.first + after * w.row_bytes;
            for (std::size_t i = 0; i < length; ++i)
                panel(w, r + i, length, FromMemory{end, next - end}, sums + r + i * panel_rows);
            for (std::size_t t = 0; t < tokens; ++t) interleave(sums + t * wide_tile_rows + r, length);
        }
    }

 private:
    static auto panel(std::byte* scratch, std::size_t p) noexcept {
        if constexpr (is_float) {
            return reinterpret_cast<float*>(scratch) + p * panel_rows * float_piece_columns;
        } else {
            constexpr std::size_t panels = tile_rows / panel_rows, scales = apart<Format> * panel_rows;
            auto* const floats = reinterpret_cast<float*>(scratch + panels * code_panel_bytes);
            return CodePanel{reinterpret_cast<std::uint8_t*>(scratch) + p * code_panel_bytes, floats + p * scales,
                             floats + (panels + p) * scales};
        }
    }

    /// Columns [k, k + n), which the panels hold. Meanwhile as many bytes are fetched of the next tile, bit by bit: a
    /// core waits when it has asked for more lines than it can keep track of.
    static void add(const WeightRows& w, const X* const* x, std::size_t tokens, std::size_t k, std::size_t n,
                    const std::byte*& next, float* sums, std::byte* scratch) noexcept {
        [[maybe_unused]] constexpr DTypeTraits layout = traits(Format::dtype);
        constexpr std::size_t most = is_float ? Lanes::float_tile_tokens : Lanes::tile_tokens;
        std::size_t blocks = 1, lines = 0;
        if constexpr (!is_float) {
            blocks = n / Format::panel_block;
            lines = tile_rows * (n / layout.block_elements * layout.block_bytes) / cache_line;
        }
        const std::size_t steps = blocks * (tile_rows / panel_rows / Lanes::tile_panels) * ((tokens + most - 1) / most);
        const std::size_t each = (lines + steps - 1) / steps;
        for (std::size_t p = 0; p * panel_rows < w.count; p += Lanes::tile_panels) {
            std::size_t t = 0;
            while (t < tokens) {
                const std::size_t now = lines > 0 ? each : 0;
                if (tokens - t <= Lanes::few_tokens) {
                    t += step<Lanes::few_tokens>(x, t, tokens, k, n, p, next, now, sums, scratch);
                } else {
                    t += step<most>(x, t, tokens, k, n, p, next, now, sums, scratch);
                }
                const std::size_t fetched = now * blocks < lines ? now * blocks : lines;
                next += fetched * cache_line;
                lines -= fetched;
            }
        }
    }

    /// Column k of x[t], or of the last row.
    static const X* row(const X* const* x, std::size_t t, std::size_t tokens, std::size_t k) noexcept {
        return x[t < tokens ? t : tokens - 1] + (is_float ? k : k / activation_block);
    }

    template <std::size_t Tokens>
    static std::size_t step(const X* const* x, std::size_t t, std::size_t tokens, std::size_t k, std::size_t n,
                            std::size_t p, const std::byte* next, std::size_t lines, float* sums,
                            std::byte* scratch) noexcept {
        const X *rows[Tokens], *ahead[Tokens];
        for (std::size_t i = 0; i < Tokens; ++i) {
            rows[i] = row(x, t + i, tokens, k);
            ahead[i] = row(x, t + Tokens + i, tokens, k);
        }
        float* const to = sums + t * tile_rows + p * panel_rows;
        if constexpr (is_float) {
            multiply_float_panels<Lanes::tile_panels, Tokens>(panel(scratch, p), n, rows, ahead, to);
        } else {
            multiply_panels<Format, Lanes::tile_panels, Tokens>(panel(scratch, p), n, rows, next, lines, to);
        }
        return Tokens;
    }

    template <std::size_t Tokens>
    struct FewPanel {
        const X* const* x;
        std::size_t tokens;
        std::byte* scratch;

        void operator()(const WeightRows& w, std::size_t r, std::size_t apart, FromMemory memory,
                        float* sums) const noexcept {
            std::conditional_t<is_float, FloatProduct<Tokens>, Product<Format, Tokens>> product(memory);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                product.x[t] = x[t < tokens ? t : tokens - 1];
                product.y[t] = Lanes::floats(0.0f);
            }
            const std::size_t piece = piece_at_once(w, r, apart);
            for (std::size_t k = 0; k < w.columns; k += piece) {
                const std::size_t n = w.columns - k < piece ? w.columns - k : piece;
                const Source source(w, r, apart, k, n, scratch + panels_bytes);
                if constexpr (is_float) {
                    unpack_floats<Format>(source.first, source.stride, n, product);
                } else {
                    Unpacker<Format>::run(source.first, source.stride, n, product);
                }
            }
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t)
                if (t < tokens) Lanes::store_floats(sums + t * wide_tile_rows, product.y[t]);
        }
    };

    static void multiply_few(const WeightRows& w, const X* const* x, std::size_t tokens, float* sums,
                             std::byte* scratch) noexcept {
        if (tokens == 1)
            few(w, tokens, sums, FewPanel<1>{x, tokens, scratch});
        else if (tokens <= 4)
            few(w, tokens, sums, FewPanel<4>{x, tokens, scratch});
        else if (tokens <= least_of(most_few, 8))
            few(w, tokens, sums, FewPanel<least_of(most_few, 8)>{x, tokens, scratch});
        else
            few(w, tokens, sums, FewPanel<most_few>{x, tokens, scratch});
    }
    static constexpr std::size_t least_of(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

    /// x[16 i + j] to x[count j + i], for i < count: 1, 2, 4 or 8.
    static void interleave(float* x, std::size_t count) noexcept {
        if (count == 2) interleave_all<2>(x);
        if (count == 4) interleave_all<4>(x);
        if (count == 8) interleave_all<8>(x);
    }
    template <std::size_t Count>
    static void interleave_all(float* x) noexcept {
        Lanes::Floats from[Count], to[Count];
        DECANT_UNROLL
        for (std::size_t i = 0; i < Count; ++i) from[i] = Lanes::load_floats(x + i * panel_rows);
        // The first half of the sequences with the second, which leaves half as many, twice as long.
        DECANT_UNROLL
        for (std::size_t step = 1; step < Count; step *= 2) {
            DECANT_UNROLL
            for (std::size_t i = 0; i < Count / 2; ++i) Lanes::interleave(from[i], from[i + Count / 2], to + 2 * i);
            DECANT_UNROLL
            for (std::size_t i = 0; i < Count; ++i) from[i] = to[i];
        }
        DECANT_UNROLL
        for (std::size_t i = 0; i < Count; ++i) Lanes::store_floats(x + i * panel_rows, from[i]);
    }
};

#include <decant/backend/simd/amx_multiply.inl>

#include <decant/backend/simd/math.inl>

#include <decant/backend/simd/pair_product.inl>
#include <decant/backend/simd/small_product.inl>

#include <decant/backend/simd/attention.inl>
#include <decant/backend/simd/rows.inl>

/// What the rest of the backend calls.
struct Set : Rows {
    static constexpr Isa isa = Lanes::isa;
    /// What block formats are multiplied by; `quantize` makes it.
    using Activations = ActivationBlock;
    /// Whether attention over an F16 cache rounds to 16-bit integers, see attention_pairs.inl.
    static constexpr bool attends_in_pairs = !std::is_void_v<Lanes::Pairs>;

    /// The most rows of a weight that are multiplied by so many tokens at once.
    static constexpr std::size_t most_rows(std::size_t tokens) noexcept {
        return tokens <= most_few ? wide_tile_rows : tile_rows;
    }

    /// sums[t][most_rows(tokens)] = products of a tile's rows with x[t], for at least 1 token: rows of
    /// `ActivationBlock` for block formats, of floats for float formats. `scratch` is room for `product_bytes`,
    /// 64-aligned; rows of sums beyond the tokens (up to `spare_rows`) may be overwritten.
    template <class Format>
    static void multiply(const WeightRows& w, const typename RowTile<Format>::X* const* x, std::size_t tokens,
                         float* sums, std::byte* scratch) noexcept {
        RowTile<Format>::multiply(w, x, tokens, sums, scratch);
    }
    /// The same by tiles, of pairs of BF16: see amx.hpp.
    template <class Format, class Tiles>
    static void multiply_tiles(const WeightRows& w, const PairBlock* const* x, std::size_t tokens, float* sums,
                               std::byte* scratch) noexcept {
        TiledProduct<Format, Tiles>::multiply(w, x, tokens, sums, scratch);
    }
    static void pair(const float* x, std::size_t columns, PairBlock* to) noexcept { to_pairs(x, columns, to); }

    /// `columns` columns of 16 rows to a panel.
    static void unpack(const std::byte* first, std::size_t row_bytes, std::size_t columns, CodeFormat auto format,
                       CodePanel to) noexcept {
        Fetch fetch{first};
        RowTile<decltype(format)>::unpack(first, row_bytes, columns, to, fetch);
    }
    static void unpack(const std::byte* first, std::size_t row_bytes, std::size_t columns, FloatFormat auto format,
                       float* to) noexcept {
        Fetch fetch{first};
        RowTile<decltype(format)>::unpack(first, row_bytes, columns, to, fetch);
    }

    /// See attention.inl.
    static void attend(const AttentionRows& rows, float* scratch) noexcept {
        each_part(rows, WholeRows<Lanes::Pairs>{scratch});
    }
    static void attend_piece(const AttentionRows& rows, std::size_t piece, float* to, std::size_t row_stride,
                             std::size_t head_stride, float* scratch) noexcept {
        each_part(rows, OnePiece<Lanes::Pairs>{piece, to, row_stride, head_stride, scratch});
    }
    static void combine_pieces(const AttentionRows& rows, std::size_t head, const float* from, std::size_t stride,
                               float* scratch) noexcept {
        Partial::combine(rows, head, from, stride, scratch);
    }
};
