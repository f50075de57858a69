// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products of panels of codes by tiles (amx.hpp); see kernels.inl.

/// Multiplies the two panels of a tile of rows by all tokens, piece by piece of their columns. The panels hold codes
/// without their bias, as signed bytes: a panel block is a B tile as it lies, and the codes of up to 16 tokens are an A
/// tile. The sums of two blocks have tiles 0 to 3, activations 4 and 5, panels 6 and 7. The tiles are the unit's from
/// construction to destruction.
template <class Format, class Tiles>
class TiledProduct {
 public:
    /// `tokens` at least 1, the same `x` for all pieces.
    TiledProduct(const ActivationBlock* const* x, std::size_t tokens) noexcept : x_(x), tokens_(tokens) {
        const std::size_t groups = (tokens + most_rows - 1) / most_rows;
        rows_ = (tokens + groups - 1) / groups;
        typename Tiles::Shapes shapes;
        for (std::size_t tile = 0; tile < 4; ++tile) shapes.set(tile, rows_, row_bytes);
        for (std::size_t tile = 4; tile < 6; ++tile) shapes.set(tile, rows_, block);
        for (std::size_t tile = 6; tile < 8; ++tile) shapes.set(tile, block / panel_group, row_bytes);
        Tiles::configure(shapes);
    }
    ~TiledProduct() { Tiles::release(); }
    TiledProduct(const TiledProduct&) = delete;
    TiledProduct& operator=(const TiledProduct&) = delete;

    /// sums[t][tile_rows] += products of columns [k, k + columns), which the panels hold. `scratch`: what the panels
    /// leave of `product_bytes`.
    void add(CodePanel panel, std::size_t k, std::size_t columns, float* sums, std::byte* scratch) const noexcept {
        for (std::size_t t = 0; t < tokens_; t += rows_)
            multiply(group(t, k, columns, sums, scratch + 2 * dots_bytes), panel, k, columns / block, scratch);
    }

 private:
    static constexpr std::size_t block = Format::panel_block;
    static constexpr std::size_t panels = tile_rows / panel_rows;
    static constexpr std::size_t most_rows = 16;
    static constexpr std::size_t row_bytes = panel_rows * sizeof(std::int32_t);
    static constexpr std::size_t tile_bytes = most_rows * row_bytes;
    static constexpr std::size_t at_once = 2;  // blocks
    static constexpr std::size_t dots_bytes = at_once * panels * tile_bytes;
    static constexpr std::size_t copy_bytes = most_rows * piece_columns;
    static_assert(block == activation_block && panels == 2 && row_bytes == panel_rows * panel_group);
    static_assert(2 * dots_bytes + copy_bytes <= product_bytes - panels_bytes);
    static_assert(Format::bias <= 128 && (1 << Format::code_bits) - Format::bias <= 128, "no signed bytes");

    /// The tokens of an A tile.
    struct Group {
        const ActivationBlock* const* x;
        float* sums;
        std::size_t rows;
        std::size_t done;  // rows at the beginning that another group has multiplied
        const std::byte* codes;
        std::ptrdiff_t stride;               // from token to token
        std::size_t advance;                 // from 32 columns to the next
        const ActivationBlock* const* next;  // the group after this
        const float* next_sums;

        [[nodiscard]] const std::byte* block_at(std::size_t b) const noexcept { return codes + b * advance; }
        /// What the next group reads where this one reads blocks b and b + 1 of row r.
        DECANT_ALWAYS_INLINE void prefetch(std::size_t r, std::size_t k, std::size_t b) const noexcept {
            const std::byte* const from = bytes(next[r] + k / block + b);
            __builtin_prefetch(from, 0, 3);
            __builtin_prefetch(from + cache_line, 0, 3);
            if (b > 0) return;
            __builtin_prefetch(next_sums + r * tile_rows, 0, 3);
            __builtin_prefetch(next_sums + r * tile_rows + panel_rows, 0, 3);
        }
    };

    /// Tokens from t on. The last group is no smaller than the others but shares tokens with the one before.
    Group group(std::size_t t, std::size_t k, std::size_t columns, float* sums, std::byte* copy) const noexcept {
        const std::size_t first = t + rows_ <= tokens_ ? t : tokens_ - rows_;
        const ActivationBlock* const* const x = x_ + first;
        const std::size_t at = k / activation_block;
        const std::size_t next = t + 2 * rows_ <= tokens_ ? t + rows_ : tokens_ - rows_;
        Group g{x,         sums + first * tile_rows, rows_, t - first, bytes(x[0] + at), 0, sizeof(ActivationBlock),
                x_ + next, sums + next * tile_rows};
        if (rows_ > 1) g.stride = distance(x[0], x[1]);
        for (std::size_t r = 2; r < rows_; ++r)
            if (distance(x[r - 1], x[r]) != g.stride) return copied(g, at, columns, copy);
        return g;
    }
    /// Of tokens that do not lie at equal distances: [blocks of 32 columns][rows][32].
    Group copied(Group g, std::size_t at, std::size_t columns, std::byte* copy) const noexcept {
        g.codes = copy;
        g.stride = activation_block;
        g.advance = rows_ * activation_block;
        for (std::size_t r = 0; r < rows_; ++r)
            for (std::size_t b = 0; b < columns / activation_block; ++b)
                __builtin_memcpy(copy + (b * rows_ + r) * activation_block, g.x[r][at + b].codes, activation_block);
        return g;
    }
    static const std::byte* bytes(const ActivationBlock* x) noexcept { return reinterpret_cast<const std::byte*>(x); }
    static std::ptrdiff_t distance(const ActivationBlock* from, const ActivationBlock* to) noexcept {
        return static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(to) -
                                           reinterpret_cast<std::uintptr_t>(from));
    }

    /// The unit works on two blocks while the lanes work on the sums that it stored two blocks before: what it stores
    /// can be loaded only when it has reached the cache.
    static void multiply(const Group& g, CodePanel panel, std::size_t k, std::size_t blocks, std::byte* dots) noexcept {
        multiply_blocks(g, panel, 0, blocks);
        for (std::size_t b = 0; b < blocks + at_once; b += at_once) {
            std::byte* const now = dots + b / at_once % 2 * dots_bytes;
            if (b < blocks) store(now, b, blocks);
            if (b + at_once < blocks) multiply_blocks(g, panel, b + at_once, blocks);
            if (b < at_once) continue;
            const std::byte* const before = dots + (b / at_once + 1) % 2 * dots_bytes;
            if (b <= blocks)
                add_dots<at_once>(g, panel, k, b - at_once, before);
            else
                add_dots<1>(g, panel, k, b - at_once, before);
        }
    }

    /// Blocks b and b + 1, unless that is the end.
    DECANT_ALWAYS_INLINE static void multiply_blocks(const Group& g, CodePanel panel, std::size_t b,
                                                     std::size_t blocks) noexcept {
        const std::uint8_t* const codes = panel.codes + b * block * panel_rows;
        constexpr std::size_t next_panel = apart<Format> * block * panel_rows;
        Tiles::template load<4>(g.block_at(b), g.stride);
        Tiles::template load<6>(codes, row_bytes);
        Tiles::template zero<0>();
        Tiles::template add_products<0, 4, 6>();
        Tiles::template load<7>(codes + next_panel, row_bytes);
        Tiles::template zero<1>();
        Tiles::template add_products<1, 4, 7>();
        if (b + 1 == blocks) return;
        Tiles::template load<5>(g.block_at(b + 1), g.stride);
        Tiles::template load<6>(codes + block * panel_rows, row_bytes);
        Tiles::template zero<2>();
        Tiles::template add_products<2, 5, 6>();
        Tiles::template load<7>(codes + next_panel + block * panel_rows, row_bytes);
        Tiles::template zero<3>();
        Tiles::template add_products<3, 5, 7>();
    }

    DECANT_ALWAYS_INLINE static void store(std::byte* dots, std::size_t b, std::size_t blocks) noexcept {
        Tiles::template store<0>(dots, row_bytes);
        Tiles::template store<1>(dots + tile_bytes, row_bytes);
        if (b + 1 == blocks) return;
        Tiles::template store<2>(dots + 2 * tile_bytes, row_bytes);
        Tiles::template store<3>(dots + 3 * tile_bytes, row_bytes);
    }

    /// The float step for `Blocks` blocks from b of the piece on, which begins at column k.
    template <std::size_t Blocks>
    DECANT_ALWAYS_INLINE static void add_dots(const Group& g, CodePanel panel, std::size_t k, std::size_t b,
                                              const std::byte* dots) noexcept {
        Lanes::Floats scales[Blocks][panels], offsets[Blocks][panels];
        DECANT_UNROLL
        for (std::size_t i = 0; i < Blocks; ++i) {
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p) {
                const std::size_t lanes = (p * apart<Format> + b + i) * panel_rows;
                scales[i][p] = Lanes::load_floats(panel.scales + lanes);
                if constexpr (Format::has_offset) offsets[i][p] = Lanes::load_floats(panel.offsets + lanes);
            }
        }
        for (std::size_t r = g.done; r < g.rows; ++r) {
            g.prefetch(r, k, b);
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p) {
                float* const sum = g.sums + r * tile_rows + p * panel_rows;
                Lanes::Floats y = Lanes::load_floats(sum);
                DECANT_UNROLL
                for (std::size_t i = 0; i < Blocks; ++i) {
                    const ActivationBlock& x = g.x[r][k / block + b + i];
                    y = scaled(Lanes::load(dots + (i * panels + p) * tile_bytes + r * row_bytes), scales[i][p], x.scale,
                               y);
                    if constexpr (Format::has_offset)
                        y = Lanes::multiply_add(offsets[i][p], Lanes::floats(x.weighted_sum), y);
                }
                Lanes::store_floats(sum, y);
            }
        }
    }

    const ActivationBlock* const* x_;
    std::size_t tokens_;
    std::size_t rows_;  // of an A tile
};

/// In registers.
template <class Format>
class TiledProduct<Format, void> {
 public:
    TiledProduct(const void*, std::size_t) noexcept {}
};
