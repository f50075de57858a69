// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Frames: cached keys and values as bytes, which another process puts into a cache of its own (`export_frame`,
/// `import_frame`).

#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/hash.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>
#include <decant/core/token.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/sealed.hpp>
#include <decant/files/token_list.hpp>
#include <decant/files/writer.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Format, little-endian: "DCKV", version, fingerprint of the model, digest of what a token's rows are, digest of the
/// tokens before, first position, number of tokens, the tokens; per layer, how many of these tokens have no row,
/// because its window has passed them (they are the first ones); then per layer the rows of K and those of V, in
/// position order; then the state after the last token, where layers keep one; a checksum of all that. Rows and states
/// are in the byte order of the machine, which the digest says.
template <class B>
class Frames {
 public:
    static Result<std::vector<std::byte>> write(std::uint64_t fingerprint, std::span<const CacheLayer> layers,
                                                const Sequence<B>& sequence, std::size_t first, std::size_t count) {
        constexpr std::string_view where = "export_frame";
        DECANT_CHECK(usable(sequence, layers, where));
        const std::span<const Token> tokens = sequence.tokens();
        if (first >= tokens.size()) {
            return Error{ErrorCode::invalid_argument,
                         text("tokens from position ", first, " on, the sequence has ", tokens.size()),
                         std::string(where), "export what is new after a pass has brought some"};
        }
        count = (std::min)(count, tokens.size() - first);
        const BlockPool<B>& pool = sequence.pool();
        const CacheShape& shape = pool.shape();
        const bool state = shape.states > 0;
        if (count == 0 || (state && first + count != tokens.size())) {
            return Error{count == 0 ? ErrorCode::invalid_argument : ErrorCode::unsupported,
                         count == 0 ? std::string("a frame without tokens")
                                    : text("tokens up to ", first + count, " of ", tokens.size(),
                                           ", but layers keep a state, which is that after the last one"),
                         std::string(where), "export up to the sequence's end"};
        }

        std::vector<std::size_t> missing, begins(pool.groups(), first);
        std::size_t row_bytes = 0;
        for (std::size_t l = 0; l < shape.layers.size(); ++l) {
            const std::size_t begin = shape.token_bytes(l) == 0 ? 0 : sequence.first_row(shape.group(l));
            missing.push_back((std::min)(begin - (std::min)(begin, first), count));
            row_bytes += (count - missing.back()) * shape.token_bytes(l);
            if (missing.back() > 0 && !sequence.reaches(first + count)) {
                return Error{ErrorCode::unsupported,
                             text("tokens up to ", first + count, " of ", tokens.size(),
                                  ", but rows that the one after them would see have been given up"),
                             std::string(where), "export up to the sequence's end, or as tokens are computed"};
            }
        }

        std::vector<std::byte> out;
        out.reserve(seal.size() + (5 + missing.size()) * sizeof(std::uint64_t) + count * sizeof(std::int32_t) +
                    row_bytes + shape.state_bytes());
        seal.begin(out);
        put(out, fingerprint);
        put(out, digest(shape));
        put(out, digest(tokens.first(first)));
        put(out, std::uint64_t{first});
        put_tokens(out, tokens.subspan(first, count));

        for (const std::size_t rows : missing) put(out, std::uint64_t{rows});

        const std::size_t at = out.size();
        out.resize(at + row_bytes + (state ? shape.state_bytes() : 0));
        const std::span<std::byte> rows = std::span(out).subspan(at, row_bytes);
        std::vector<std::byte> whole(shape.block_bytes());
        Result<void> done;
        each_block(sequence, missing, begins, first, count, [&](std::int32_t block, bool full, auto each_run) {
            if (full) done = pool.read_block(block, 0, whole);
            each_run([&](std::size_t inside, std::size_t row, std::size_t bytes) {
                if (full) {
                    std::memcpy(rows.data() + row, whole.data() + inside, bytes);
                } else if (done) {
                    done = pool.read_block(block, inside, rows.subspan(row, bytes));
                }
            });
            return done.has_value();
        });
        if (done && state) done = pool.read_state(sequence.state_, std::span(out).subspan(at + rows.size()));
        DECANT_CHECK(std::move(done));
        seal.finish(out);
        return out;
    }

    static Result<void> read(std::uint64_t fingerprint, std::uint32_t vocabulary, std::span<const CacheLayer> layers,
                             Sequence<B>& sequence, std::span<const std::byte> bytes) {
        DECANT_CHECK(usable(sequence, layers, "import_frame"));
        auto content = open(fingerprint, vocabulary, sequence, bytes);
        if (!content) return std::move(content).error().in("frame of a cache");
        return take(sequence, *content);
    }

 private:
    static constexpr Seal seal{"DCKV", 2, "frame", "export it again", hash64};

    struct Content {
        std::vector<Token> tokens;
        std::vector<std::size_t> missing;  // [layers] tokens without a row
        std::vector<std::size_t> begins;   // [groups] positions from which on rows are taken
        std::span<const std::byte> rows;
        std::span<const std::byte> state;
    };

    static Result<void> usable(const Sequence<B>& sequence, std::span<const CacheLayer> layers,
                               std::string_view where) {
        if (!sequence.attached()) {
            return Error{ErrorCode::invalid_argument, "a sequence that was moved from", std::string(where),
                         "use the one it was moved to"};
        }
        const std::vector<CacheLayer>& own = sequence.pool().shape().layers;
        if (!std::equal(own.begin(), own.end(), layers.begin(), layers.end())) {
            return Error{ErrorCode::invalid_argument, "a sequence of another model's cache", std::string(where),
                         "give the model that the cache was made for"};
        }
        return {};
    }

    [[nodiscard]] static std::uint64_t digest(const CacheShape& shape) {
        Hash64 hash;
        hash.add(std::endian::native == std::endian::little, shape.dtype, shape.states > 0);
        for (const CacheLayer& layer : shape.layers)
            hash.add(layer.kv_heads, layer.head_dim, layer.latent(), layer.state);
        return hash.value();
    }
    [[nodiscard]] static std::uint64_t digest(std::span<const Token> tokens) {
        Hash64 hash;
        for (const Token token : tokens) hash.add(id(token));
        return hash.value();
    }

    /// For every block of a group with rows of positions [first, first + count), from the group's `begins` on:
    /// use(block, whether all of it, each_run), where each_run(run) calls run(offset in the block, offset in a frame's
    /// rows, bytes) for each layer's K and V. Ends where `use` returns false.
    template <class Use>
    static void each_block(const Sequence<B>& sequence, std::span<const std::size_t> missing,
                           std::span<const std::size_t> begins, std::size_t first, std::size_t count, Use use) {
        const CacheShape& shape = sequence.pool().shape();
        const std::size_t block = shape.block_tokens, layers = shape.layers.size();
        for (std::size_t g = 0; g < begins.size(); ++g) {
            std::size_t least = count, most = 0;  // tokens without rows in some layer, in any
            for (std::size_t l = 0; l < layers; ++l) {
                if (shape.group(l) != g || shape.token_bytes(l) == 0) continue;
                least = (std::min)(least, missing[l]);
                most = (std::max)(most, missing[l]);
            }
            for (std::size_t done = (std::max)(least, begins[g] - first), tokens = 0; done < count; done += tokens) {
                const std::size_t skipped = (first + done) % block;
                tokens = (std::min)(block - skipped, count - done);
                const auto each_run = [&](auto run) {
                    std::size_t rows = 0;
                    for (std::size_t l = 0; l < layers; ++l) {
                        const std::size_t row = shape.row_bytes(l), begin = (std::max)(done, missing[l]);
                        std::size_t inside = shape.layer_offset(l) + (skipped + begin - done) * row;
                        for (int part = shape.layers[l].latent() ? 1 : 0; row > 0 && part < 2; ++part) {
                            if (shape.group(l) == g && begin < done + tokens)
                                run(inside, rows + (begin - missing[l]) * row, (done + tokens - begin) * row);
                            inside += block * row;
                            rows += (count - missing[l]) * row;
                        }
                    }
                };
                if (!use(sequence.table(g)[(first + done) / block], tokens == block && done >= most, each_run)) return;
            }
        }
    }

    /// What the bytes hold, all of it checked. Nothing is changed.
    static Result<Content> open(std::uint64_t fingerprint, std::uint32_t vocabulary, const Sequence<B>& sequence,
                                std::span<const std::byte> bytes) {
        const auto foreign = [](std::string what, std::string hint) {
            return Error{ErrorCode::mismatch, std::move(what), {}, std::move(hint)};
        };
        DECANT_TRY(ByteReader in, seal.open(bytes));
        const CacheShape& shape = sequence.pool().shape();
        DECANT_TRY(const auto model, in.number<std::uint64_t>("the model's fingerprint"));
        if (model != fingerprint) return foreign("it is another model's", "use the same file at both ends");
        DECANT_TRY(const auto layout, in.number<std::uint64_t>("the digest of its rows"));
        if (layout != digest(shape)) {
            return foreign("its entries are of another type or byte order",
                           text("use caches of the same dtype (here ", name(shape.dtype), ") at both ends"));
        }
        DECANT_TRY(const auto before, in.number<std::uint64_t>("the digest of the tokens before"));
        DECANT_TRY(const auto first, in.number<std::uint64_t>("the first position"));
        if (first != sequence.size()) {
            return foreign(text("it begins at position ", first, ", the sequence has ", sequence.size(), " tokens"),
                           "import frames in order, each once");
        }
        if (before != digest(sequence.tokens()))
            return foreign("other tokens came before it", "import it behind the frames of the same sequence");

        Content content;
        DECANT_TRY(content.tokens, read_tokens(in, "the number of tokens"));
        for (const Token token : content.tokens) {
            if (id(token) < 0 || static_cast<std::uint32_t>(id(token)) >= vocabulary)
                return seal.damaged(text("token ", id(token)));
        }
        DECANT_CHECK(read_rows(in, sequence, content));
        if (shape.states > 0) {
            DECANT_TRY(content.state, in.take(shape.state_bytes(), "its state"));
        }
        if (content.tokens.empty() || in.remaining() != 0)
            return seal.damaged("it has more or fewer bytes than it should");
        return content;
    }

    static Result<void> read_rows(ByteReader& in, const Sequence<B>& sequence, Content& content) {
        const BlockPool<B>& pool = sequence.pool();
        const CacheShape& shape = pool.shape();
        const std::size_t first = sequence.size(), count = content.tokens.size();
        std::size_t bytes = 0;
        // What windows have passed at the end of the frame is left out.
        for (std::size_t g = 0; g < pool.groups(); ++g) {
            const std::size_t seen = first_seen(pool.window(g) == 0 ? 0 : pool.window(g) + window_spare, first + count);
            content.begins.push_back((std::max)(first, seen));
        }
        for (std::size_t l = 0; l < shape.layers.size(); ++l) {
            DECANT_TRY(const auto missing, in.number<std::uint64_t>("the number of rows that a layer lacks"));
            const std::size_t row = shape.token_bytes(l);
            const std::size_t left = in.remaining() - (std::min)(bytes, in.remaining());
            if (missing > count || (row > 0 && count - missing > left / row))
                return seal.damaged("it has more or fewer bytes than it should");
            content.missing.push_back(static_cast<std::size_t>(missing));
            bytes += (count - content.missing.back()) * row;
            if (row == 0 || missing == 0) continue;
            const std::uint32_t g = shape.group(l);
            content.begins[g] = (std::max)(content.begins[g], first + content.missing.back());
            if (first_seen(pool.window(g), first + count) < content.begins[g]) {
                return Error{ErrorCode::mismatch,
                             text("it lacks rows before position ", content.begins[g], ", which are to be kept here"),
                             {},
                             "set CacheOptions::forget_unseen at both ends, or at none"};
            }
        }
        DECANT_TRY(content.rows, in.take(bytes, "its rows"));
        return {};
    }

    /// Brings a sequence back to where it was, unless dismissed.
    class Undo {
     public:
        explicit Undo(Sequence<B>& sequence) noexcept : sequence_(&sequence), mark_(sequence.mark()) {}
        Undo(const Undo&) = delete;
        Undo& operator=(const Undo&) = delete;
        ~Undo() {
            if (sequence_ != nullptr) sequence_->restore(mark_);
        }
        void dismiss() noexcept { std::exchange(sequence_, nullptr)->accept(mark_); }

     private:
        Sequence<B>* sequence_;
        typename Sequence<B>::Mark mark_;
    };

    static Result<void> take(Sequence<B>& sequence, const Content& content) {
        BlockPool<B>& pool = sequence.pool();
        const CacheShape& shape = pool.shape();
        std::vector<std::byte> whole(shape.block_bytes());
        Undo undo(sequence);
        const std::size_t first = sequence.size(), count = content.tokens.size();
        DECANT_CHECK(sequence.make_room(count, content.begins));
        DECANT_CHECK(sequence.make_state());
        Result<void> done;
        each_block(sequence, content.missing, content.begins, first, count,
                   [&](std::int32_t block, bool full, auto each_run) {
                       each_run([&](std::size_t inside, std::size_t row, std::size_t bytes) {
                           if (full) {
                               std::memcpy(whole.data() + inside, content.rows.data() + row, bytes);
                           } else if (done) {
                               done = pool.write_block(block, inside, content.rows.subspan(row, bytes));
                           }
                       });
                       if (full) done = pool.write_block(block, 0, whole);
                       return done.has_value();
                   });
        if (done && shape.states > 0) done = pool.write_state(sequence.next_state_, content.state);
        DECANT_CHECK(std::move(done));
        for (std::size_t g = 0; g < pool.groups(); ++g)
            if (content.begins[g] > first) sequence.begin_at(g, content.begins[g]);
        sequence.append(content.tokens);
        undo.dismiss();
        return {};
    }
};

}  // namespace detail

/// The cached keys and values of up to `count` tokens from position `first` on, as bytes: what `import_frame` appends
/// to a sequence elsewhere. Versioned and checksummed. `model` is the `Model` that computed them. While a long prompt
/// is computed in parts, what each part has brought can be sent. Copies through the host's memory, so not within a
/// pass. Where layers keep a state, a frame ends at the sequence's end and carries the state after it. Rows that
/// windows have passed are not in it, if the cache has given them up. Errors: `invalid_argument` if there are no such
/// tokens or the cache is another model's, `unsupported` for a frame that would need a state from the middle or rows
/// that are gone, those of the backend.
template <class M, class B>
[[nodiscard]] Result<std::vector<std::byte>> export_frame(
    const M& model, const Sequence<B>& sequence, std::size_t first = 0,
    std::size_t count = (std::numeric_limits<std::size_t>::max)()) {
    return detail::Frames<B>::write(model.fingerprint(), model.spec().cache_layers(), sequence, first, count);
}

/// Appends the tokens of a frame to a sequence, with their keys and values, as if they had been computed: what follows
/// has the same bits. The sequence ends where the frame begins, and holds the same tokens; its cache is of the same
/// model and dtype, its size, the size of its blocks, and the executor do not matter. (A frame of another backend or
/// instruction set goes on within its tolerance.) Bytes are only read. Errors, which leave the sequence as it was:
/// `bad_format` for bytes that are no frame or were damaged, `unsupported` for another version, `mismatch` for a frame
/// of another model, cache or place, or without rows that this cache keeps, `cache_full`, those of the backend.
template <class M, class B>
[[nodiscard]] Result<void> import_frame(const M& model, Sequence<B>& sequence, std::span<const std::byte> frame) {
    return detail::Frames<B>::read(model.fingerprint(), model.spec().vocabulary, model.spec().cache_layers(), sequence,
                                   frame);
}

}  // namespace decant::inline DECANT_ABI
