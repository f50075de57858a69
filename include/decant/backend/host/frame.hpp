// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the operations of a host backend work on: views, weights, the cache, and the inputs of a pass.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace host {

/// Row-major activations in the workspace: [rows of the row set, columns] floats.
struct View {
    float* data = nullptr;
    std::uint32_t columns = 0;
    RowSet rows = RowSet::tokens;

    [[nodiscard]] float* row(std::size_t r) const noexcept { return data + r * columns; }
};

/// A tensor where it lies: the file's bytes (unaligned), or floats that the model derived and `owned` keeps.
struct Weight {
    DType dtype = DType::f32;
    std::uint32_t rows = 0;
    std::uint32_t columns = 0;
    const std::byte* data = nullptr;
    std::size_t row_bytes = 0;
    std::shared_ptr<const std::vector<float>> owned;

    [[nodiscard]] const std::byte* row(std::size_t r) const noexcept { return data + r * row_bytes; }
};

/// A KV pool as the operations see it.
struct Cache {
    std::byte* data = nullptr;    ///< of the blocks
    std::byte* states = nullptr;  ///< in front of them
    const CacheShape* shape = nullptr;

    std::size_t block_bytes = 0;
    std::size_t state_bytes = 0;

    Cache() = default;
    Cache(std::byte* pool, const CacheShape& layout)
        : data(pool + layout.blocks_offset()),
          states(pool),
          shape(&layout),
          block_bytes(layout.block_bytes()),
          state_bytes(layout.state_bytes()) {}

    /// A layer's part of a state.
    [[nodiscard]] float* state(std::uint32_t layer, std::int32_t slot) const {
        return reinterpret_cast<float*>(states + static_cast<std::size_t>(slot) * state_bytes +
                                        shape->state_offset(layer));
    }

    /// Address of the K row of a slot; its V row lies `to_value(layer)` bytes further, unless it is latent.
    [[nodiscard]] std::byte* key(std::uint32_t layer, std::size_t slot) const {
        return data + slot / shape->block_tokens * block_bytes + shape->layer_offset(layer) +
               slot % shape->block_tokens * shape->row_bytes(layer);
    }
    [[nodiscard]] std::size_t to_value(std::uint32_t layer) const {
        return shape->block_tokens * shape->row_bytes(layer);
    }
};

/// What a tile may read besides its operation.
struct Frame {
    PassShape shape;
    PassInputs inputs;
    Cache cache;
    std::uint64_t most_work = 0;  ///< multiply-adds that a tile should not exceed by much; 0: no limit
    std::uint32_t longest = 0;    ///< positions that the last row of a sequence sees, where there is a limit

    [[nodiscard]] std::uint32_t rows(RowSet set) const noexcept {
        return set == RowSet::tokens ? inputs.rows : inputs.wanted_rows;
    }
    /// A layer's part of a row's `cache_slots` or `sources`, and of its sequence's block table.
    [[nodiscard]] std::int32_t slot(std::span<const std::int32_t> of, std::uint32_t layer, std::uint32_t row) const {
        return of[std::size_t{cache.shape->group(layer)} * shape.rows + row];
    }
    [[nodiscard]] const std::int32_t* table(std::uint32_t layer, std::uint32_t row) const {
        return inputs.tables.data() + (std::size_t{cache.shape->group(layer)} * shape.sequences +
                                       static_cast<std::size_t>(inputs.sequences[row])) *
                                          shape.table;
    }
    /// Sequences in the pass, whose rows follow one another.
    [[nodiscard]] std::uint32_t sequences() const noexcept {
        return inputs.rows == 0 ? 0 : static_cast<std::uint32_t>(inputs.sequences[inputs.rows - 1]) + 1;
    }
};

}  // namespace host
}  // namespace decant::inline DECANT_ABI
