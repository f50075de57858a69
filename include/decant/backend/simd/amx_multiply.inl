// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products of panels of codes by tiles (amx.hpp); see kernels.inl.

/// Multiplies the two panels of a tile of rows by all tokens, piece by piece of their columns. The panels hold codes
/// without their bias, as signed bytes: a panel block is a B tile as it lies, and the codes of up to 16 tokens are an A
/// tile. Sums have tiles 0 to 3, activations 4 and 5, panels 6 and 7. The tiles are the unit's from construction to
/// destruction.
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
        std::size_t t = 0;
        for (; t + rows_ < tokens_; t += 2 * rows_) step<2>(panel, t, k, columns, sums, scratch);
        if (t < tokens_) step<1>(panel, t, k, columns, sums, scratch);
    }

 private:
    static constexpr std::size_t block = Format::panel_block;
    static constexpr std::size_t panels = tile_rows / panel_rows;
    static constexpr std::size_t most_rows = 16;
    static constexpr std::size_t row_bytes = panel_rows * sizeof(std::int32_t);
    static constexpr std::size_t tile_bytes = most_rows * row_bytes;
    static constexpr std::size_t dots_bytes = 2 * panels * tile_bytes;
    static constexpr std::size_t copy_bytes = most_rows * piece_columns;
    static_assert(panels == 2 && row_bytes == panel_rows * panel_group);
    static_assert(dots_bytes + 2 * copy_bytes <= product_bytes - panels_bytes);
    static_assert(Format::bias <= 128 && (1 << Format::code_bits) - Format::bias <= 128, "no signed bytes");

    /// The tokens of an A tile.
    struct Group {
        const ActivationBlock* const* x;
        float* sums;
        std::size_t done;  // rows at the beginning that another group has multiplied
        const std::byte* codes;
        std::ptrdiff_t stride;  // from token to token
        std::size_t advance;    // from 32 columns to the next

        [[nodiscard]] const std::byte* block_at(std::size_t b) const noexcept {
            return codes + b * block / activation_block * advance + b * block % activation_block;
        }
    };

    /// Tokens from t on. The last group is no smaller than the others but shares tokens with the one before.
    Group group(std::size_t t, std::size_t k, std::size_t columns, float* sums, std::byte* copy) const noexcept {
        const std::size_t first = t + rows_ <= tokens_ ? t : tokens_ - rows_;
        const ActivationBlock* const* const x = x_ + first;
        const std::size_t at = k / activation_block;
        Group g{x, sums + first * tile_rows, t - first, bytes(x[0] + at), 0, sizeof(ActivationBlock)};
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

    /// The unit works on a block while the lanes work on the sums of the one before.
    template <std::size_t Groups>
    void step(CodePanel panel, std::size_t t, std::size_t k, std::size_t columns, float* sums,
              std::byte* scratch) const noexcept {
        std::byte* const dots = scratch;
        Group g[Groups];
        for (std::size_t i = 0; i < Groups; ++i)
            g[i] = group(t + i * rows_, k, columns, sums, scratch + dots_bytes + i * copy_bytes);
        const std::size_t blocks = columns / block;
        multiply(g, panel, 0);
        store<Groups>(dots);
        for (std::size_t b = 0; b < blocks; ++b) {
            if (b + 1 < blocks) multiply(g, panel, b + 1);
            for (std::size_t i = 0; i < Groups; ++i)
                add_dots(g[i], panel, (k + b * block) / activation_block, b, dots + i * panels * tile_bytes);
            if (b + 1 < blocks) store<Groups>(dots);
        }
    }

    template <std::size_t Groups>
    DECANT_ALWAYS_INLINE static void multiply(const Group (&g)[Groups], CodePanel panel, std::size_t b) noexcept {
        const std::uint8_t* const codes = panel.codes + b * block * panel_rows;
        Tiles::template load<6>(codes, row_bytes);
        Tiles::template load<4>(g[0].block_at(b), g[0].stride);
        Tiles::template zero<0>();
        Tiles::template add_products<0, 4, 6>();
        Tiles::template load<7>(codes + apart<Format> * block * panel_rows, row_bytes);
        Tiles::template zero<1>();
        Tiles::template add_products<1, 4, 7>();
        if constexpr (Groups > 1) {
            Tiles::template load<5>(g[1].block_at(b), g[1].stride);
            Tiles::template zero<2>();
            Tiles::template add_products<2, 5, 6>();
            Tiles::template zero<3>();
            Tiles::template add_products<3, 5, 7>();
        }
    }

    template <std::size_t Groups>
    DECANT_ALWAYS_INLINE static void store(std::byte* dots) noexcept {
        Tiles::template store<0>(dots, row_bytes);
        Tiles::template store<1>(dots + tile_bytes, row_bytes);
        if constexpr (Groups > 1) {
            Tiles::template store<2>(dots + 2 * tile_bytes, row_bytes);
            Tiles::template store<3>(dots + 3 * tile_bytes, row_bytes);
        }
    }

    /// The float step for block b of the piece, whose activations are in block `at` of the row.
    void add_dots(const Group& g, CodePanel panel, std::size_t at, std::size_t b,
                  const std::byte* dots) const noexcept {
        Lanes::Floats scales[panels], offsets[panels];
        DECANT_UNROLL
        for (std::size_t p = 0; p < panels; ++p) {
            const std::size_t lanes = (p * apart<Format> + b) * panel_rows;
            scales[p] = Lanes::load_floats(panel.scales + lanes);
            if constexpr (Format::has_offset) offsets[p] = Lanes::load_floats(panel.offsets + lanes);
        }
        for (std::size_t r = g.done; r < rows_; ++r) {
            const ActivationBlock& x = g.x[r][at];
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p) {
                float* const sum = g.sums + r * tile_rows + p * panel_rows;
                Lanes::Floats y = scaled(Lanes::load(dots + p * tile_bytes + r * row_bytes), scales[p], x.scale,
                                         Lanes::load_floats(sum));
                if constexpr (Format::has_offset) y = Lanes::multiply_add(offsets[p], Lanes::floats(x.weighted_sum), y);
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
