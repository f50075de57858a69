// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products of block formats by tiles (amx.hpp); see kernels.inl.
//
// A result is a chain of sums over the blocks of 32 columns. A block's part is what one tile instruction adds: pairs of
// columns i and 16 + i, in the order of i. Weights are what the format says, rounded to BF16, and so are activations.

/// A number's upper half, which is a BF16, rounded to nearest: what lies in the middle, away from 0.
DECANT_ALWAYS_INLINE Lanes::Words rounded(Lanes::Floats x) noexcept {
    return Lanes::add(Lanes::as_words(x), Lanes::words(0x8000));
}

/// Pairs of BF16, of `low` in the lower halves of the words.
DECANT_ALWAYS_INLINE Lanes::Words paired(Lanes::Floats low, Lanes::Floats high) noexcept {
    return Lanes::bit_or(Lanes::template right<16>(rounded(low)),
                         Lanes::bit_and(rounded(high), Lanes::words(0xFFFF0000u)));
}

/// x[0, columns) as a row of an A tile reads it; `columns` a multiple of 32.
inline void to_pairs(const float* x, std::size_t columns, PairBlock* to) noexcept {
    for (std::size_t i = 0; i < columns; i += activation_block, ++to)
        Lanes::store(to->pairs, paired(Lanes::load_floats(x + i), Lanes::load_floats(x + i + activation_half)));
}

/// Base of the sinks of pairs: collects 32 columns, which `Sink::take` then writes by `write`.
template <class Format, class Sink>
class PairSink {
 public:
    DECANT_ALWAYS_INLINE void codes(std::size_t g, Lanes::Words w) noexcept {
        codes_[half_ * groups + g] = multiplied<Format, true>(w);
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales) noexcept {
        if constexpr (Format::panel_block == activation_half) {
            scales_[half_] = scales;
            half_ ^= 1;
            if (half_ != 0) return;
        } else {
            scales_[0] = scales_[1] = scales;
        }
        static_cast<Sink*>(this)->take();
    }
    DECANT_ALWAYS_INLINE void end(Lanes::Floats scales, Lanes::Floats offsets) noexcept {
        if constexpr (Format::panel_block == activation_half)
            offsets_[half_] = offsets;
        else
            offsets_[0] = offsets_[1] = offsets;
        end(scales);
    }

 protected:
    /// As a B tile: [pairs][rows].
    DECANT_ALWAYS_INLINE void write(std::byte* to) const noexcept {
        // A code is converted where it is the highest byte of a word.
        const Lanes::Floats unit = Lanes::floats(0x1p-24f);
        const Lanes::Floats low = Lanes::times(scales_[0], unit);
        const Lanes::Floats high = Format::panel_block == activation_half ? Lanes::times(scales_[1], unit) : low;
        DECANT_UNROLL
        for (std::size_t g = 0; g < groups; ++g, to += panel_group * tile_row_bytes) {
            store<0>(g, low, high, to);
            store<1>(g, low, high, to);
            store<2>(g, low, high, to);
            store<3>(g, low, high, to);
        }
    }

 private:
    static constexpr std::size_t groups = activation_half / panel_group;

    template <int Byte>
    DECANT_ALWAYS_INLINE void store(std::size_t g, Lanes::Floats low, Lanes::Floats high,
                                    std::byte* to) const noexcept {
        Lanes::store(to + Byte * tile_row_bytes,
                     paired(value<Byte>(g, low, offsets_[0]), value<Byte>(groups + g, high, offsets_[1])));
    }
    template <int Byte>
    DECANT_ALWAYS_INLINE Lanes::Floats value(std::size_t g, Lanes::Floats scales,
                                             Lanes::Floats offsets) const noexcept {
        Lanes::Words w = codes_[g];
        if constexpr (Byte < 3) w = Lanes::template left<24 - 8 * Byte>(w);
        if constexpr (Byte > 0) w = Lanes::bit_and(w, Lanes::words(0xFF000000u));
        if constexpr (Format::has_offset)
            return Lanes::multiply_add(Lanes::to_floats(w), scales, offsets);
        else
            return Lanes::times(Lanes::to_floats(w), scales);
    }

    static_assert(Format::bias <= 128 && (1 << Format::code_bits) - Format::bias <= 128, "no signed bytes");
    Lanes::Words codes_[activation_block / panel_group];
    Lanes::Floats scales_[2], offsets_[2];
    std::size_t half_ = 0;
};

/// Products of the rows of a weight with rows of activations.
template <class Format, class Tiles>
class TiledProduct {
 public:
    /// As `RowTile::multiply`, of pairs. The tiles are the unit's meanwhile.
    static void multiply(const WeightRows& w, const PairBlock* const* x, std::size_t tokens, float* sums,
                         std::byte* scratch) noexcept {
        const Rows rows(x, tokens);
        if (tokens <= most_few)
            multiply_few(w, rows, tokens, sums, scratch);
        else
            multiply_many(w, rows, tokens, sums, scratch);
        Tiles::release();
    }

 private:
    using Tile = RowTile<Format>;
    static constexpr std::size_t most_rows = 16;  // of a tile
    static constexpr std::size_t tile_bytes = most_rows * tile_row_bytes;
    static constexpr std::size_t panel_bytes = piece_columns / activation_block * tile_bytes;
    static constexpr std::size_t panels = tile_rows / panel_rows;
    static_assert(panels == 2);

    /// Rows of activations, and how far each lies from the one before, if that is the same for all.
    struct Rows {
        const PairBlock* const* x;
        std::ptrdiff_t stride = 0;
        bool even = true;

        Rows(const PairBlock* const* rows, std::size_t count) noexcept : x(rows) {
            if (count > 1) stride = distance(0);
            for (std::size_t t = 1; t + 1 < count; ++t) even = even && distance(t) == stride;
        }
        [[nodiscard]] std::ptrdiff_t distance(std::size_t t) const noexcept {
            return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(x[t + 1]) -
                                               reinterpret_cast<std::uintptr_t>(x[t]));
        }
    };

    /// Blocks of up to 16 rows of activations that lie at equal distances.
    struct Group {
        const std::byte* first;
        std::ptrdiff_t stride;   // from row to row
        std::ptrdiff_t advance;  // from block to block

        /// Rows [t, t + count), blocks from `b` on; `copy`: room for that where they lie unevenly.
        Group(const Rows& rows, std::size_t t, std::size_t count, std::size_t b, std::size_t blocks,
              std::byte* copy) noexcept
            : first(reinterpret_cast<const std::byte*>(rows.x[t] + b)),
              stride(rows.stride),
              advance(sizeof(PairBlock)) {
            if (rows.even) return;
            for (std::size_t i = 0; i < blocks; ++i)
                for (std::size_t r = 0; r < count; ++r)
                    __builtin_memcpy(copy + (i * count + r) * sizeof(PairBlock), rows.x[t + r] + b + i,
                                     sizeof(PairBlock));
            first = copy;
            stride = sizeof(PairBlock);
            advance = static_cast<std::ptrdiff_t>(count * sizeof(PairBlock));
        }
    };

    /// Sums of `first` and `second` rows have tiles 0 and 1, 2 and 3; activations 4 and 5, panels 6 and 7.
    static void configure(std::size_t first, std::size_t second) noexcept {
        typename Tiles::Shapes shapes;
        for (std::size_t tile = 0; tile < 6; ++tile) {
            const std::size_t rows = tile == 2 || tile == 3 || tile == 5 ? second : first;
            shapes.set(tile, rows, rows > 0 ? tile_row_bytes : 0);
        }
        for (std::size_t tile = 6; tile < 8; ++tile) shapes.set(tile, most_rows, tile_row_bytes);
        Tiles::configure(shapes);
    }

    // ---- many tokens: two panels are written, and then multiplied by 32 tokens at a time

    struct ToPairs : FromCache, PairSink<Format, ToPairs> {
        std::byte* to;
        Fetch fetch;

        ToPairs(std::byte* panel, Fetch ahead) noexcept : to(panel), fetch(ahead) {}
        template <std::size_t Bytes>
        DECANT_ALWAYS_INLINE void begin() noexcept {
            fetch.template run<Bytes>();
        }
        DECANT_ALWAYS_INLINE void take() noexcept {
            this->write(to);
            to += tile_bytes;
        }
    };

    static void multiply_many(const WeightRows& w, const Rows& x, std::size_t tokens, float* sums,
                              std::byte* scratch) noexcept {
        std::byte* const copy = scratch + panels * panel_bytes;
        std::byte* const x_copy = copy + pair_copy_bytes;
        const std::size_t piece = Tile::piece_of(w.columns);
        Fetch fetch{w.first + tile_rows * w.row_bytes};
        std::size_t shaped = 0;  // for how many tokens
        for (std::size_t k = 0; k < w.columns; k += piece) {
            const std::size_t n = w.columns - k < piece ? w.columns - k : piece;
            for (std::size_t p = 0; p < panels; ++p) {
                const typename Tile::Source source(w, p * panel_rows < w.count ? p * panel_rows : 0, 1, k, n, copy);
                ToPairs sink(scratch + p * panel_bytes, fetch);
                Unpacker<Format>::run(source.first, source.stride, n, sink);
                fetch = sink.fetch;
            }
            const std::size_t b = k / activation_block, blocks = n / activation_block;
            for (std::size_t t = 0; t < tokens; t += 2 * most_rows) {
                const std::size_t now = tokens - t < 2 * most_rows ? tokens - t : 2 * most_rows;
                const std::size_t first = now < most_rows ? now : most_rows, second = now - first;
                if (now != shaped) {
                    if (shaped != 0) Tiles::release();
                    configure(first, second);
                    shaped = now;
                }
                const Group one(x, t, first, b, blocks, x_copy);
                float* const to = sums + t * tile_rows;
                if (second == 0) {
                    add<false>(one, one, scratch, blocks, k > 0, to);
                } else {
                    const Group other(x, t + first, second, b, blocks, x_copy + panel_bytes);
                    add<true>(one, other, scratch, blocks, k > 0, to);
                }
            }
        }
    }

    /// sums[t][tile_rows] (+)= products of `blocks` blocks.
    template <bool Both>
    static void add(const Group& one, const Group& other, const std::byte* panel, std::size_t blocks, bool accumulate,
                    float* sums) noexcept {
        constexpr std::ptrdiff_t stride = tile_rows * sizeof(float);
        float* const others = sums + most_rows * tile_rows;
        if (accumulate) {
            Tiles::template load<0>(sums, stride);
            Tiles::template load<1>(sums + panel_rows, stride);
            if constexpr (Both) {
                Tiles::template load<2>(others, stride);
                Tiles::template load<3>(others + panel_rows, stride);
            }
        } else {
            Tiles::template zero<0>();
            Tiles::template zero<1>();
            if constexpr (Both) {
                Tiles::template zero<2>();
                Tiles::template zero<3>();
            }
        }
        const std::byte *a = one.first, *c = other.first;
        for (std::size_t i = 0; i < blocks; ++i, panel += tile_bytes, a += one.advance, c += other.advance) {
            Tiles::template load<4>(a, one.stride);
            Tiles::template load<6>(panel, tile_row_bytes);
            Tiles::template add_products<0, 4, 6>();
            Tiles::template load<7>(panel + panel_bytes, tile_row_bytes);
            Tiles::template add_products<1, 4, 7>();
            if constexpr (Both) {
                Tiles::template load<5>(c, other.stride);
                Tiles::template add_products<2, 5, 6>();
                Tiles::template add_products<3, 5, 7>();
            }
        }
        Tiles::template store<0>(sums, stride);
        Tiles::template store<1>(sums + panel_rows, stride);
        if constexpr (Both) {
            Tiles::template store<2>(others, stride);
            Tiles::template store<3>(others + panel_rows, stride);
        }
    }

    // ---- few tokens: each block is multiplied when it has been written

    struct Product : FromMemory, PairSink<Format, Product> {
        const Rows& x;
        std::size_t tokens;
        std::byte* room;  // two blocks, and a copy of activations
        std::size_t b = 0;

        Product(FromMemory memory, const Rows& rows, std::size_t count, std::byte* scratch) noexcept
            : FromMemory(memory), x(rows), tokens(count), room(scratch) {}
        template <std::size_t Bytes>
        DECANT_ALWAYS_INLINE void begin() noexcept {}
        DECANT_ALWAYS_INLINE void take() noexcept {
            std::byte* const to = room + b % 2 * tile_bytes;
            this->write(to);
            const Group group(x, 0, tokens, b, 1, room + (2 + b % 2) * tile_bytes);
            Tiles::template load<4>(group.first, group.stride);
            Tiles::template load<6>(to, tile_row_bytes);
            Tiles::template add_products<0, 4, 6>();
            ++b;
        }
    };

    /// See `RowTile::few`.
    struct FewPanel {
        const Rows& x;
        std::size_t tokens;
        std::byte* scratch;

        void operator()(const WeightRows& w, std::size_t r, std::size_t apart, FromMemory memory,
                        float* sums) const noexcept {
            Tiles::template zero<0>();
            Product product(memory, x, tokens, scratch);
            const std::size_t piece = Tile::piece_at_once(w, r, apart);
            for (std::size_t k = 0; k < w.columns; k += piece) {
                const std::size_t n = w.columns - k < piece ? w.columns - k : piece;
                const typename Tile::Source source(w, r, apart, k, n, scratch + 4 * tile_bytes);
                Unpacker<Format>::run(source.first, source.stride, n, product);
            }
            Tiles::template store<0>(sums, wide_tile_rows * sizeof(float));
        }
    };

    static void multiply_few(const WeightRows& w, const Rows& x, std::size_t tokens, float* sums,
                             std::byte* scratch) noexcept {
        configure(tokens, 0);
        Tile::few(w, tokens, sums, FewPanel{x, tokens, scratch});
    }
};
