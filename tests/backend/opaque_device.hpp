// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The child's end of the `Opaque` backend: owns all buffers, does with the `Eigen` backend what it is told.

#include "backend/opaque_wire.hpp"

#include <decant/backend/eigen/eigen.hpp>
#include <decant/core/adjustment.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace decant_test::opaque {

using EigenPass = decant::Eigen::Pass;

struct Targets {
    std::array<decant::host::LinearTarget, decant::host::Linear::max_targets> list;
    std::uint32_t count = 0;
};

/// `EigenPass::linear` takes a list whose length is known where it is written.
inline void linear(EigenPass& pass, decant::host::View x, const Targets& targets) {
    const auto& t = targets.list;
    switch (targets.count) {
        case 1: return pass.linear(x, {t[0]});
        case 2: return pass.linear(x, {t[0], t[1]});
        case 3: return pass.linear(x, {t[0], t[1], t[2]});
        default: return pass.linear(x, {t[0], t[1], t[2], t[3]});
    }
}

/// Functions by number.
template <auto... functions>
struct Table {
    template <auto function>
    struct Constant {};

    template <auto wanted>
    static constexpr std::uint32_t code = [] {
        std::uint32_t at = 0;
        static_assert((std::is_same_v<Constant<wanted>, Constant<functions>> || ...));
        static_cast<void>(((std::is_same_v<Constant<wanted>, Constant<functions>> || (++at, false)) || ...));
        return at;
    }();

    /// Calls `visit(function)` for the function of that number; false if there is none.
    template <class Visit>
    static bool find(std::uint32_t number, Visit&& visit) {
        std::uint32_t at = 0;
        return ((at++ == number ? (visit(functions), true) : false) || ...);
    }
};

/// Every operation that a pass can record.
using Operations =
    Table<&EigenPass::embed, &EigenPass::norm, &linear, &EigenPass::angles, &EigenPass::rope, &EigenPass::store,
          &EigenPass::attend, &EigenPass::gate, &EigenPass::activate, &EigenPass::softcap, &EigenPass::copy,
          &EigenPass::route, &EigenPass::experts, &EigenPass::mix, &EigenPass::convolve, &EigenPass::scan,
          &EigenPass::gather, &EigenPass::pick, &EigenPass::move>;

class Device {
 public:
    explicit Device(int socket) : socket_(socket) {}

    /// Until the other end closes or breaks the rules of the wire.
    void serve() {
        Header header;
        std::vector<std::byte> payload;
        while (receive_all(socket_, &header, sizeof header)) {
            payload.resize(static_cast<std::size_t>(header.bytes));
            if (!receive_all(socket_, payload.data(), payload.size())) return;
            Reader reader(payload);
            if (!handle(header.command, reader) || !reader.ok() || !reader.empty()) return;
        }
    }

 private:
    using Id = std::uint64_t;

    struct Stored {
        std::vector<std::byte> bytes;
        decant::host::Weight weight;
    };
    struct Recorded {
        explicit Recorded(const decant::Eigen& backend) : pass(backend.pass(1)) {}
        EigenPass pass;
        decant::PassShape shape;
        std::vector<std::shared_ptr<const void>> uses;        // weights and buffers that the recording names
        std::deque<std::vector<decant::host::Weight>> lists;  // of experts, where the recording finds them
        std::vector<std::int32_t> tokens, positions, sequences, cache_slots, sources, tables, wanted, masks,
            states_from, states_to;
        std::vector<std::uint32_t> ends, allowed;
        std::vector<decant::LogitAdjustment> adjustments;
        std::shared_ptr<decant::HostMemory> cache;
        decant::CacheShape cache_shape;
    };

    bool handle(Command command, Reader& in) {
        const Id id = in.get<Id>();
        switch (command) {
            case Command::allocate: {
                auto made = backend_.allocate(static_cast<std::size_t>(in.get<std::uint64_t>()));
                if (!made) return answer(made.error());
                buffers_[id] = std::make_shared<decant::HostMemory>(*std::move(made));
                return answer({});
            }
            case Command::weight: return weight(id, in);
            case Command::constant: {
                auto made = backend_.constant(in.list<float>());
                if (!made) return answer(made.error());
                weights_[id] = std::make_shared<Stored>(Stored{{}, *std::move(made)});
                return answer({});
            }
            case Command::pass: passes_[id] = std::make_unique<Recorded>(backend_); return true;
            case Command::reserve: return reserve(id, in);
            case Command::record: return record(id, in);
            case Command::upload: return upload(id, in);
            case Command::run: return run(id);
            case Command::copy: return copy(id, in);
            case Command::download: return download(id, in);
            case Command::fetch: return fetch(id);
            case Command::read: return read(id, in);
            case Command::write: return write(id, in);
            case Command::release:
                buffers_.erase(id);
                weights_.erase(id);
                passes_.erase(id);
                staged_.erase(id);
                return true;
        }
        return false;
    }

    bool weight(Id id, Reader& in) {
        const std::string name = in.text();
        const std::string type_name = in.text();
        const auto dtype = in.get<decant::DType>();
        const auto shape = in.get<decant::Shape>();
        const auto stored = std::make_shared<Stored>(Stored{in.list<std::byte>(), {}});
        const decant::Tensor tensor{name, type_name, dtype, shape, stored->bytes};
        auto made = backend_.weight(tensor);
        if (!made) return answer(made.error());
        if (made->rows * made->row_bytes != stored->bytes.size()) return false;
        stored->weight = *std::move(made);
        weights_[id] = stored;
        return answer({});
    }

    bool reserve(Id id, Reader& in) {
        Recorded* const recorded = find(id);
        if (recorded == nullptr) return false;
        recorded->shape = in.get<decant::PassShape>();
        recorded->uses.clear();
        recorded->lists.clear();
        auto done = recorded->pass.reserve(recorded->shape, in.get<std::uint32_t>());
        return done ? answer({}) : answer(done.error());
    }

    /// Operations by number, each followed by its arguments in order.
    bool record(Id id, Reader& in) {
        Recorded* const recorded = find(id);
        if (recorded == nullptr) return false;
        recorded->pass.record(in.get<decant::PassVariant>(), [&](EigenPass&) {
            while (!in.empty() && in.ok()) {
                const auto number = in.get<std::uint32_t>();
                if (!Operations::find(number, [&](auto function) { apply(function, *recorded, in); })) in.fail();
            }
        });
        return true;
    }
    template <class... A>
    void apply(void (*operation)(EigenPass&, A...), Recorded& recorded, Reader& in) {
        std::tuple<decltype(argument(recorded, in, std::type_identity<std::remove_cvref_t<A>>{}))...> arguments{
            argument(recorded, in, std::type_identity<std::remove_cvref_t<A>>{})...};
        if (!in.ok()) return;
        std::apply([&](const auto&... values) { operation(recorded.pass, values...); }, arguments);
    }
    template <class... A>
    void apply(void (EigenPass::*operation)(A...), Recorded& recorded, Reader& in) {
        std::tuple<decltype(argument(recorded, in, std::type_identity<std::remove_cvref_t<A>>{}))...> arguments{
            argument(recorded, in, std::type_identity<std::remove_cvref_t<A>>{})...};
        if (!in.ok()) return;
        std::apply([&](const auto&... values) { (recorded.pass.*operation)(values...); }, arguments);
    }

    template <class T>
    T argument(Recorded&, Reader& in, std::type_identity<T>) {
        return in.get<T>();
    }
    decant::host::View argument(Recorded& recorded, Reader& in, std::type_identity<decant::host::View>) {
        const auto view = in.get<View>();
        const std::size_t rows = view.rows == decant::RowSet::tokens ? recorded.shape.rows : recorded.shape.wanted;
        float* const data = floats(view, rows);
        if (data == nullptr) {
            in.fail();
        } else {
            recorded.uses.push_back(buffers_[view.buffer]);
        }
        return {data, view.columns, view.rows};
    }
    std::reference_wrapper<const decant::host::Weight> argument(Recorded& recorded, Reader& in,
                                                                std::type_identity<decant::host::Weight>) {
        static const decant::host::Weight none;
        const decant::host::Weight* const found = weight_or_null(recorded, in);
        if (found == nullptr) in.fail();
        return found == nullptr ? none : *found;
    }
    const decant::host::Weight* argument(Recorded& recorded, Reader& in,
                                         std::type_identity<const decant::host::Weight*>) {
        return weight_or_null(recorded, in);
    }
    std::span<const decant::host::Weight> argument(Recorded& recorded, Reader& in,
                                                   std::type_identity<std::span<const decant::host::Weight>>) {
        auto& list = recorded.lists.emplace_back();
        for (auto left = in.get<std::uint64_t>(); left > 0 && in.ok(); --left)
            list.push_back(argument(recorded, in, std::type_identity<decant::host::Weight>{}));
        return list;
    }
    Targets argument(Recorded& recorded, Reader& in, std::type_identity<Targets>) {
        Targets targets;
        targets.count = in.get<std::uint32_t>();
        if (targets.count == 0 || targets.count > targets.list.size()) {
            in.fail();
            return {};
        }
        for (std::uint32_t n = 0; n < targets.count; ++n) {
            auto& target = targets.list[n];
            target.weight = weight_or_null(recorded, in);
            target.bias = weight_or_null(recorded, in);
            target.out = argument(recorded, in, std::type_identity<decant::host::View>{});
            target.accumulate = in.get<bool>();
            if (target.weight == nullptr) in.fail();
        }
        return targets;
    }
    const decant::host::Weight* weight_or_null(Recorded& recorded, Reader& in) {
        const Id id = in.get<Id>();
        if (id == 0) return nullptr;
        const auto found = weights_.find(id);
        if (found == weights_.end()) {
            in.fail();
            return nullptr;
        }
        recorded.uses.push_back(found->second);
        return &found->second->weight;
    }

    bool upload(Id id, Reader& in) {
        Recorded* const recorded = find(id);
        if (recorded == nullptr) return false;
        Recorded& r = *recorded;
        decant::PassInputs inputs;
        inputs.rows = in.get<std::uint32_t>();
        inputs.wanted_rows = in.get<std::uint32_t>();
        bool right =
            inputs.rows <= r.shape.rows && inputs.wanted_rows <= inputs.rows && inputs.wanted_rows <= r.shape.wanted;
        const auto take = [&](std::vector<std::int32_t>& values, std::size_t length, std::size_t used) {
            values = in.list<std::int32_t>();
            right = right && values.size() == length &&
                    std::all_of(values.begin() + static_cast<std::ptrdiff_t>(used), values.end(),
                                [](std::int32_t value) { return value == -1; });
            return std::span<const std::int32_t>(values);
        };
        inputs.tokens = take(r.tokens, r.shape.rows, inputs.rows);
        inputs.positions = take(r.positions, r.shape.rows, inputs.rows);
        inputs.sequences = take(r.sequences, r.shape.rows, inputs.rows);
        const std::size_t slots = std::size_t{r.shape.groups} * r.shape.rows;
        inputs.cache_slots = take(r.cache_slots, slots, slots);
        for (std::size_t row = 0; right && row < slots; ++row)
            right = row % r.shape.rows < inputs.rows || inputs.cache_slots[row] == -1;
        const std::size_t tables = std::size_t{r.shape.groups} * r.shape.sequences * r.shape.table;
        inputs.tables = take(r.tables, tables, tables);
        inputs.wanted = take(r.wanted, r.shape.wanted, inputs.wanted_rows);
        inputs.sources = r.sources = in.list<std::int32_t>();
        right = right && (r.sources.empty() || r.sources.size() == slots);
        inputs.states_from = r.states_from = in.list<std::int32_t>();
        inputs.states_to = r.states_to = in.list<std::int32_t>();
        for (const auto* states : {&r.states_from, &r.states_to})
            right = right && (states->empty() || states->size() == r.shape.sequences);
        inputs.variant = in.get<decant::PassVariant>();
        inputs.picks = in.get<bool>();
        inputs.pick.adjustments = r.adjustments = in.list<decant::LogitAdjustment>();
        inputs.pick.ends = r.ends = in.list<std::uint32_t>();
        inputs.pick.allowed = r.allowed = in.list<std::uint32_t>();
        inputs.pick.masks = r.masks = in.list<std::int32_t>();
        if (inputs.picks) {
            right = right && r.ends.size() == r.shape.wanted && r.masks.size() == r.shape.wanted;
            for (std::uint32_t i = 0; right && i < inputs.wanted_rows; ++i)
                right = r.ends[i] <= r.adjustments.size() && (i == 0 || r.ends[i - 1] <= r.ends[i]);
        }
        const auto cache = buffers_.find(in.get<Id>());
        r.cache_shape.layers = in.list<decant::CacheLayer>();
        r.cache_shape.block_tokens = in.get<std::uint32_t>();
        r.cache_shape.dtype = in.get<decant::DType>();
        r.cache_shape.states = in.get<std::uint32_t>();
        r.cache_shape.groups = in.list<std::uint32_t>();
        if (!in.ok() || cache == buffers_.end()) return false;
        if (!right) return queue("inputs that are not as long as the shape says, or not padded by -1");
        r.cache = cache->second;
        if (!states_right(r, inputs)) return queue("a pass over states that the cache lacks, or from one to itself");
        backend_.upload(r.pass, inputs, *r.cache, r.cache_shape);
        return true;
    }

    /// Whether every sequence of a forward pass has its states, if there are such.
    static bool states_right(const Recorded& r, const decant::PassInputs& inputs) {
        const auto room = static_cast<std::int32_t>(r.cache_shape.states);
        if (room == 0 || inputs.variant != decant::PassVariant::forward) return true;
        if (r.cache->size() < r.cache_shape.blocks_offset() || r.states_from.empty() || r.states_to.empty())
            return false;
        for (std::uint32_t t = 0; t < inputs.rows; ++t) {
            const auto s = static_cast<std::size_t>(inputs.sequences[t]);
            if (s >= r.shape.sequences) return false;
            const std::int32_t from = r.states_from[s], to = r.states_to[s];
            if (from < -1 || from >= room || to < 0 || to >= room || from == to) return false;
        }
        return true;
    }

    bool run(Id id) {
        Recorded* const recorded = find(id);
        if (recorded == nullptr || !recorded->cache) return queue("a run without inputs");
        static_cast<void>(recorded->pass.run(decant::AnyExecutor{}));
        return true;
    }

    bool copy(Id id, Reader& in) {
        const auto from = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto to = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto bytes = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto found = buffers_.find(id);
        if (found == buffers_.end()) return false;
        const std::size_t size = found->second->size();
        if (bytes > size || from > size - bytes || to > size - bytes) return queue("a copy outside its buffer");
        backend_.copy(*found->second, from, to, bytes);
        return true;
    }

    bool download(Id id, Reader& in) {
        const auto view = in.get<View>();
        const auto rows = static_cast<std::size_t>(in.get<std::uint64_t>());
        const float* const data = floats(view, rows);
        if (data == nullptr) return queue("a download outside its buffer");
        staged_[id].assign(data, data + rows * view.columns);
        return true;
    }

    bool fetch(Id id) {
        if (failure_) {
            const decant::Error error = *std::exchange(failure_, std::nullopt);
            return answer(error);
        }
        const auto found = staged_.find(id);
        if (found == staged_.end()) return answer(broken("nothing was downloaded"));
        const bool sent = answer({}, std::span<const float>(found->second));
        staged_.erase(found);
        return sent;
    }

    bool read(Id id, Reader& in) {
        const auto offset = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto size = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto found = buffers_.find(id);
        if (found == buffers_.end()) return false;
        if (failure_) {
            const decant::Error error = *std::exchange(failure_, std::nullopt);
            return answer(error);
        }
        if (!inside(*found->second, offset, size)) return answer(broken("a read outside its buffer"));
        return answer({}, std::span<const std::byte>(found->second->data() + offset, size));
    }
    bool write(Id id, Reader& in) {
        const auto offset = static_cast<std::size_t>(in.get<std::uint64_t>());
        const auto bytes = in.list<std::byte>();
        const auto found = buffers_.find(id);
        if (found == buffers_.end()) return false;
        if (!inside(*found->second, offset, bytes.size())) return answer(broken("a write outside its buffer"));
        static_cast<void>(backend_.write(*found->second, offset, bytes));
        return answer({});
    }
    static bool inside(const decant::HostMemory& buffer, std::size_t offset, std::size_t size) {
        return size <= buffer.size() && offset <= buffer.size() - size;
    }

    bool answer(const std::optional<decant::Error>& error) { return answer(error, std::span<const float>()); }
    template <class T>
    bool answer(const std::optional<decant::Error>& error, std::span<const T> values) {
        Writer out;
        out.put(error.has_value());
        if (error) out.error(*error);
        out.list(values);
        const std::uint64_t size = out.bytes().size();
        return send_all(socket_, &size, sizeof size) && send_all(socket_, out.bytes().data(), out.bytes().size());
    }

    /// The first failure of a command without an answer.
    bool queue(const char* what) {
        if (!failure_) failure_ = broken(what);
        return true;
    }
    static decant::Error broken(const char* what) {
        return {decant::ErrorCode::invalid_argument, what, "the device of the Opaque backend", {}};
    }

    Recorded* find(Id id) {
        const auto found = passes_.find(id);
        return found == passes_.end() ? nullptr : found->second.get();
    }

    /// Null if the view's first `rows` rows are not in its buffer.
    float* floats(const View& view, std::size_t rows) {
        const auto found = buffers_.find(view.buffer);
        if (found == buffers_.end()) return nullptr;
        const std::size_t size = found->second->size() / sizeof(float);
        if (view.offset > size || (view.columns > 0 && rows > (size - view.offset) / view.columns)) return nullptr;
        return reinterpret_cast<float*>(found->second->data()) + view.offset;
    }

    int socket_;
    decant::Eigen backend_;
    std::map<Id, std::shared_ptr<decant::HostMemory>> buffers_;
    std::map<Id, std::shared_ptr<Stored>> weights_;
    std::map<Id, std::unique_ptr<Recorded>> passes_;
    std::map<Id, std::vector<float>> staged_;
    std::optional<decant::Error> failure_;
};

}  // namespace decant_test::opaque
