// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/backend/concept.hpp>

#include "support/catch.hpp"

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>

namespace {

using decant::host::LinearTarget;
using decant::host::View;
using decant::host::Weight;

static_assert(decant::Backend<decant::Eigen>);
static_assert(decant::Backend<decant::Simd>);
static_assert(decant::Backend<decant::BasicSimd<decant::simd::Portable>>);
static_assert(!decant::Backend<int>);

/// The operations of a pass, each of which can be left out.
enum class Operation {
    none,
    embed,
    norm,
    linear,
    angles,
    rope,
    store,
    attend,
    gate,
    activate,
    softcap,
    copy,
    route,
    experts,
    mix,
    convolve,
    scan,
    gather,
    pick,
    move,
    reserve,
    run,
    workspace_bytes
};

template <Operation missing>
struct PassWithout {
    using Op = Operation;
    void embed(const Weight&, View, float) requires(missing != Op::embed) {}
    void norm(View, const Weight&, const decant::NormSpec&, View, bool, const Weight*,
              std::uint32_t) requires(missing != Op::norm) {}
    void linear(View, std::initializer_list<LinearTarget>) requires(missing != Op::linear) {}
    void angles(const Weight&, const decant::RopeSpec&, View) requires(missing != Op::angles) {}
    void rope(View, View, const decant::RopeSpec&) requires(missing != Op::rope) {}
    void store(View, View, std::uint32_t) requires(missing != Op::store) {}
    void attend(View, std::uint32_t, const decant::AttentionSpec&, View,
                const Weight*) requires(missing != Op::attend) {}
    void gate(View, View, const decant::GateSpec&, View) requires(missing != Op::gate) {}
    void activate(View, const decant::GateSpec&, View) requires(missing != Op::activate) {}
    void softcap(View, float) requires(missing != Op::softcap) {}
    void copy(View, View, const decant::CopySpec&) requires(missing != Op::copy) {}
    void route(View, const Weight*, const decant::RouteSpec&, View) requires(missing != Op::route) {}
    void experts(View, std::span<const Weight>, std::span<const Weight>, View, View) requires(missing != Op::experts) {}
    void mix(View, View, View, bool) requires(missing != Op::mix) {}
    void convolve(View, const Weight&, const Weight*, std::uint32_t, View) requires(missing != Op::convolve) {}
    void scan(View, View, const Weight&, const Weight&, const decant::StateSpec&, std::uint32_t,
              View) requires(missing != Op::scan) {}
    void gather(View, View) requires(missing != Op::gather) {}
    void pick(View, std::uint32_t, View) requires(missing != Op::pick) {}
    void move(std::uint32_t, View, const decant::RopeSpec&) requires(missing != Op::move) {}
    decant::Result<void> reserve(const decant::PassShape&, std::uint32_t) requires(missing != Op::reserve) {
        return {};
    }
    decant::RunState run(const decant::AnyExecutor&, decant::RunLimits) requires(missing != Op::run) { return {}; }
    std::size_t workspace_bytes() const requires(missing != Op::workspace_bytes) { return 0; }
};

/// The members of a backend, each of which can be left out.
enum class Member {
    none,
    allocate,
    weight,
    constant,
    view,
    pass,
    pass_bytes,
    upload,
    copy,
    read,
    write,
    download,
    wait
};

template <Operation operation, Member missing = Member::none>
struct BackendWithout {
    struct Buffer {};
    struct Ticket {};
    using View = decant::host::View;
    using Weight = decant::host::Weight;
    using LinearTarget = decant::host::LinearTarget;
    using Pass = PassWithout<operation>;
    using M = Member;

    decant::Result<Buffer> allocate(std::size_t) const requires(missing != M::allocate) { return Buffer{}; }
    decant::Result<Weight> weight(const decant::Tensor&) const requires(missing != M::weight) { return Weight{}; }
    decant::Result<Weight> constant(std::vector<float>) const requires(missing != M::constant) { return Weight{}; }
    View view(Buffer&, std::size_t, std::uint32_t, decant::RowSet) const requires(missing != M::view) { return {}; }
    Pass pass(std::size_t) const requires(missing != M::pass) { return {}; }
    std::size_t pass_bytes(const decant::PassShape&, std::uint32_t, std::size_t) const
        requires(missing != M::pass_bytes) {
        return 0;
    }
    void upload(Pass&, const decant::PassInputs&, Buffer&, const decant::CacheShape&) const
        requires(missing != M::upload) {}
    void copy(Buffer&, std::size_t, std::size_t, std::size_t) const requires(missing != M::copy) {}
    decant::Result<void> read(const Buffer&, std::size_t, std::span<std::byte>) const requires(missing != M::read) {
        return {};
    }
    decant::Result<void> write(Buffer&, std::size_t, std::span<const std::byte>) const requires(missing != M::write) {
        return {};
    }
    Ticket download(View, std::size_t) const requires(missing != M::download) { return {}; }
    decant::Result<std::span<const float>> wait(Ticket) const requires(missing != M::wait) {
        return std::span<const float>{};
    }
};

template <Operation operation>
inline constexpr bool without_operation = decant::Backend<BackendWithout<operation>>;
template <Member member>
inline constexpr bool without_member = decant::Backend<BackendWithout<Operation::none, member>>;

// A type without any class of the library's is a backend as soon as nothing is missing, and none before.
static_assert(without_operation<Operation::none> && without_member<Member::none>);
static_assert(!without_operation<Operation::embed> && !without_operation<Operation::norm> &&
              !without_operation<Operation::linear> && !without_operation<Operation::angles> &&
              !without_operation<Operation::rope> && !without_operation<Operation::store> &&
              !without_operation<Operation::attend> && !without_operation<Operation::gate> &&
              !without_operation<Operation::activate> && !without_operation<Operation::softcap> &&
              !without_operation<Operation::copy> && !without_operation<Operation::route> &&
              !without_operation<Operation::experts> && !without_operation<Operation::mix> &&
              !without_operation<Operation::convolve> && !without_operation<Operation::scan> &&
              !without_operation<Operation::gather> && !without_operation<Operation::pick> &&
              !without_operation<Operation::move> && !without_operation<Operation::reserve> &&
              !without_operation<Operation::run> && !without_operation<Operation::workspace_bytes>);
static_assert(!without_member<Member::allocate> && !without_member<Member::weight> &&
              !without_member<Member::constant> && !without_member<Member::view> && !without_member<Member::pass> &&
              !without_member<Member::pass_bytes> && !without_member<Member::upload> && !without_member<Member::copy> &&
              !without_member<Member::read> && !without_member<Member::write> && !without_member<Member::download> &&
              !without_member<Member::wait>);

}  // namespace

TEST_CASE("concept: the library's backends meet it and a type that lacks an operation does not") {
    SUCCEED("asserted at compile time");
}
