// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Damaged model files, from the bytes to a token: whatever is done to a valid GGUF file, every step gives an error that
// says something or a result, within a fixed amount of memory, and nothing else. Meant for a build with the address and
// undefined-behaviour sanitizers; a plain build limits its address space instead.
//
//     gguf_mutation DATA [COUNT [SEED [FIRST]]]
//
// DATA is tests/data. A mutation is a function of (SEED, its number), so that a failure is repeated by
// `gguf_mutation DATA 1 SEED NUMBER`; the number is printed when the program dies.
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/files/gguf_writer.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/context.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/text/chat.hpp>
#include <decant/text/tokenizer.hpp>

#include "model/tiny_file.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define DECANT_FUZZ_ADDRESS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DECANT_FUZZ_ADDRESS 1
#endif
#endif
#if !defined(DECANT_FUZZ_ADDRESS)
#define DECANT_FUZZ_ADDRESS 0
#endif

#if DECANT_FUZZ_ADDRESS
// An allocation beyond 64 MB, or a gigabyte in all, ends the program.
extern "C" const char* __asan_default_options() {
    return "max_allocation_size_mb=64:hard_rss_limit_mb=1024:quarantine_size_mb=16:detect_stack_use_after_return=0";
}
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace {

using decant::DType;
using decant_test::Random;
using Bytes = std::vector<std::byte>;

constexpr std::size_t workspace_limit = std::size_t{64} << 20;

std::uint64_t current = 0;  // number of the mutation, for the message at the end

/// Prints the number with nothing that may fail in a signal handler.
void print_current() {
    char line[64] = "died at mutation ";
    const std::size_t start = std::strlen(line);
    char* end = std::to_chars(line + start, line + sizeof line - 1, current).ptr;
    *end++ = '\n';
#if defined(__unix__) || defined(__APPLE__)
    static_cast<void>(!write(2, line, static_cast<std::size_t>(end - line)));
#else
    std::fwrite(line, 1, static_cast<std::size_t>(end - line), stderr);
#endif
}

void limit_process() {
#if DECANT_FUZZ_ADDRESS
    __sanitizer_set_death_callback(print_current);
#elif defined(__unix__) || defined(__APPLE__)
    const rlimit limit{1u << 30, 1u << 30};
    setrlimit(RLIMIT_AS, &limit);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
        std::signal(signal, [](int number) {
            print_current();
            std::signal(number, SIG_DFL);
            std::raise(number);
        });
    }
#endif
}

/// A valid file, and the places where its fields lie.
struct Original {
    std::string name;
    Bytes bytes;
    std::size_t header = 0;           // bytes before the tensor data
    std::vector<std::size_t> keys;    // ends of their names: type and value follow
    std::vector<std::size_t> fields;  // ends of the names of keys and tensors: types, values and shapes follow
};

Original make_original(std::string name, Bytes bytes) {
    Original original{std::move(name), std::move(bytes), 0, {}, {}};
    const auto weights = decant::Weights::from_memory(original.bytes);
    if (!weights) {
        std::fprintf(stderr, "%s: %s\n", original.name.c_str(), weights.error().message().c_str());
        std::exit(2);
    }
    original.header = original.bytes.size();
    const auto offset = [&](const void* at) {
        return static_cast<std::size_t>(static_cast<const std::byte*>(at) - original.bytes.data());
    };
    for (const std::string_view key : weights->metadata().keys())
        original.keys.push_back(offset(key.data()) + key.size());
    original.fields = original.keys;
    for (const decant::Tensor& tensor : weights->tensors()) {
        original.fields.push_back(offset(tensor.name.data()) + tensor.name.size());
        original.header = (std::min)(original.header, offset(tensor.bytes.data()));
    }
    return original;
}

/// A model of 24 tokens whose weights are of one dtype, with tokenizer and chat template.
Original made(DType dtype) {
    const bool k = decant::traits(dtype).block_elements == 256;
    decant_test::TinyFile tiny(dtype, k ? 256 : 32, k ? 256 : 64, 1);
    tiny.vector("rope_freqs.weight", tiny.head_dim / 2);
    static constexpr std::array<std::string_view, 24> pieces{"<|im_start|>",
                                                             "<|im_end|>",
                                                             "a",
                                                             "b",
                                                             "c",
                                                             "d",
                                                             "e",
                                                             "f",
                                                             "g",
                                                             "h",
                                                             "i",
                                                             "j",
                                                             "k",
                                                             "l",
                                                             "m",
                                                             "n",
                                                             "o",
                                                             "p",
                                                             "q",
                                                             "r",
                                                             "ab",
                                                             "abc",
                                                             "ef",
                                                             "<extra>"};
    static constexpr std::array<std::string_view, 3> merges{"a b", "ab c", "e f"};
    std::array<std::int32_t, 24> types{};
    types.fill(1);
    types[0] = types[1] = 3;
    types[23] = 4;
    return make_original(std::string(decant::name(dtype)), tiny.bytes([&](decant::GgufWriter& writer) {
        writer.add("llama.rope.dimension_count", tiny.head_dim);
        writer.add("llama.rope.freq_base", 10000.0f);
        writer.add("llama.rope.scaling.type", dtype == DType::q4_0 ? "linear" : "yarn");
        writer.add("llama.rope.scaling.factor", 2.0f);
        writer.add("llama.rope.scaling.original_context_length", std::uint32_t{64});
        writer.add("tokenizer.ggml.model", "gpt2");
        writer.add("tokenizer.ggml.pre", "smollm");
        writer.add("tokenizer.ggml.tokens", std::span<const std::string_view>(pieces));
        writer.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
        writer.add("tokenizer.ggml.merges", std::span<const std::string_view>(merges));
        writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{0});
        writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{1});
        writer.add("tokenizer.ggml.add_bos_token", true);
        writer.add("tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                   "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
                   "}}{% endif %}");
    }));
}

Original from_disk(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> chars{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    const auto bytes = std::as_bytes(std::span(chars));
    return make_original(path.filename().string(), {bytes.begin(), bytes.end()});
}

// Numbers at which checks go wrong; powers of two and their neighbours are made.
std::uint64_t interesting(Random& random) {
    switch (random.below(6)) {
        case 0: return random.below(10);
        case 1: return std::uint64_t{1} << random.below(64);
        case 2: return (std::uint64_t{1} << random.below(64)) - 1;
        case 3: return ~std::uint64_t{0} - random.below(40);
        case 4: return 0x7fffffff'7fffffffu;
        default: return random.next();
    }
}

/// A place to change: mostly in the header, and there mostly near what names end with.
std::size_t place(const Original& original, std::size_t size, Random& random) {
    const auto near = [&](const std::vector<std::size_t>& ends, std::size_t from, std::size_t to) {
        return (std::min)(ends[random.below(ends.size())] + from + random.below(to - from), size - 1);
    };
    const std::size_t kind = random.below(10);
    if (size == 0) return 0;
    if (kind < 4) return near(original.keys, 4, 12);  // a value, or the type and length of an array
    if (kind < 6) return near(original.fields, 0, 40);
    if (kind < 8) return random.below((std::min)(original.header, size));
    return random.below(size);
}

Bytes mutated(const Original& original, Random& random) {
    Bytes bytes = original.bytes;
    const std::size_t several = random.below(5);
    for (std::size_t changes = several < 3 ? 1 : several - 1; changes != 0; --changes) {
        const std::size_t at = place(original, bytes.size(), random);
        if (bytes.empty()) break;
        switch (random.below(20)) {
            case 0:
            case 1:
            case 2:
            case 3: bytes[at] ^= static_cast<std::byte>(1u << random.below(8)); break;
            case 4:
            case 5: bytes[at] = static_cast<std::byte>(random.next()); break;
            case 6: bytes.resize(at); break;
            case 7: bytes.resize(random.below(bytes.size())); break;
            case 8: {  // the same bytes again
                const std::size_t count = (std::min)(random.below(64), bytes.size() - at);
                const Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                  bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
                bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
                break;
            }
            case 9: {  // a piece gone; the file keeps its alignment now and then
                const std::size_t count = (std::min)(random.below(2) * 31 + 1 + random.below(2), bytes.size() - at);
                bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                            bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
                break;
            }
            case 10: {
                const Bytes noise(1 + random.below(40), static_cast<std::byte>(random.next()));
                bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), noise.begin(), noise.end());
                break;
            }
            case 11:
            case 12: {  // a piece of the file over another
                const std::size_t from = place(original, bytes.size(), random);
                const std::size_t count = (std::min)(random.below(64), bytes.size() - (std::max)(at, from));
                std::memmove(bytes.data() + at, bytes.data() + from, count);
                break;
            }
            default: {
                const std::uint64_t value = interesting(random);
                const std::size_t width = std::size_t{1} << random.below(4);
                for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i)
                    bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
            }
        }
    }
    return bytes;
}

struct Counts {
    std::uint64_t files = 0;       // refused by the reader
    std::uint64_t tokenizers = 0;  // files that could be read, whose tokenizer was refused
    std::uint64_t models = 0;      // the same for the model
    std::uint64_t texts = 0;       // tokenizers that worked
    std::uint64_t tokens = 0;      // models that gave logits
    std::uint64_t silent = 0;      // errors without a message
    std::uint64_t large = 0;       // models whose workspace or cache exceeded the limit
    std::uint64_t finite = 0;      // ... that were numbers
    std::uint64_t bytes = 0;       // of texts and ids, so that they are made
};

void refuse(const decant::Error& error, std::uint64_t& count, Counts& counts) {
    ++count;
    counts.silent += error.what.empty() || error.where.empty();
}

void use_text(const decant::Weights& weights, Counts& counts) {
    const auto tokenizer = decant::Tokenizer::from(weights);
    if (!tokenizer) return refuse(tokenizer.error(), counts.tokenizers, counts);
    ++counts.texts;
    constexpr std::string_view text = "abc <|im_end|> efgh 12 \xc3\xa9\xff";
    auto tokens = tokenizer->encode(text, {.bos = true, .special = true});
    if (const auto chat = decant::ChatTemplate::from(weights)) {
        const decant::Message message{"user", text};
        if (auto prompt = chat->encode(*tokenizer, {&message, 1})) tokens = *std::move(prompt);
    }
    counts.bytes += tokenizer->decode(tokens, {.control = true}).size();
}

/// Two tokens in passes of one row, then the choice of a third.
template <class B>
void use_model(const decant::Weights& weights, Counts& counts) {
    const auto model = decant::Model<B>::bind(weights);
    if (!model) return refuse(model.error(), counts.models, counts);
    decant::Context context(*model, {.rows = 1, .sequences = 1, .logits = 1});
    const decant::KvCache cache(context, {.tokens = 2, .block_tokens = 2});
    auto sequence = cache.sequence();
    if (!sequence) return refuse(sequence.error(), counts.models, counts);
    const std::array tokens{decant::Token{0}, decant::Token{static_cast<std::int32_t>(context.spec().vocabulary - 1)}};
    const auto logits = context.prefill(*sequence, tokens);
    counts.large += context.workspace_bytes() + cache.bytes() > workspace_limit;
    if (!logits) return refuse(logits.error(), counts.models, counts);
    ++counts.tokens;
    counts.finite += decant::Sampler({.temperature = 1.0f}).pick(*logits, sequence->tokens()).has_value();
}

void use(const Bytes& bytes, Counts& counts) {
    // A heap block of exactly the file's size: the sanitizer sees one byte too far.
    const std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
    std::memcpy(copy.get(), bytes.data(), bytes.size());
    const auto weights = decant::Weights::from_memory({copy.get(), bytes.size()}, copy);
    if (!weights) return refuse(weights.error(), counts.files, counts);
    use_text(*weights, counts);
    use_model<decant::Eigen>(*weights, counts);
    use_model<decant::Simd>(*weights, counts);
}

std::uint64_t argument(int argc, char** argv, int index, std::uint64_t otherwise) {
    if (index >= argc) return otherwise;
    std::uint64_t value = 0;
    const std::string_view text = argv[index];
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size()) {
        std::fprintf(stderr, "not a number: %s\n", argv[index]);
        std::exit(2);
    }
    return value;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s DATA [COUNT [SEED [FIRST]]]\n", argv[0]);
        return 2;
    }
    const std::filesystem::path data = argv[1];
    const std::uint64_t count = argument(argc, argv, 2, 100'000);
    const std::uint64_t seed = argument(argc, argv, 3, 1);
    const std::uint64_t first = argument(argc, argv, 4, 0);
    limit_process();

    std::vector<Original> originals;
    for (const DType dtype :
         {DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0, DType::q8_0, DType::q4_k, DType::q6_k})
        originals.push_back(made(dtype));
    originals.push_back(from_disk(data / "tiny-gguf/llama2.gguf"));
    originals.push_back(from_disk(data / "tiny-gguf/llama3.gguf"));
    for (const Original& original : originals) {
        Counts intact;
        use(original.bytes, intact);
        if (intact.tokens != 2) {
            std::fprintf(stderr, "%s does not work as it is\n", original.name.c_str());
            return 2;
        }
    }

    Counts counts;
    for (std::uint64_t i = 0; i < count; ++i) {
        current = first + i;
        Random random{seed * 0x9e3779b97f4a7c15u + current * 0xbf58476d1ce4e5b9u};
        use(mutated(originals[current % originals.size()], random), counts);
        if ((i + 1) % 20'000 == 0) std::printf("%llu mutations\n", static_cast<unsigned long long>(i + 1));
    }
    const auto print = [](const char* what, std::uint64_t n) {
        std::printf("%9llu %s\n", static_cast<unsigned long long>(n), what);
    };
    print("mutations", count);
    print("files refused", counts.files);
    print("tokenizers refused", counts.tokenizers);
    print("tokenizers that worked", counts.texts);
    print("models refused (two backends)", counts.models);
    print("models that gave logits (two backends)", counts.tokens);
    print("... of finite numbers", counts.finite);
    print("bytes of text decoded", counts.bytes);
    print("errors without what or where", counts.silent);
    print("workspaces and caches beyond the limit", counts.large);
    if (counts.silent != 0 || counts.large != 0) return 1;
    // Damage that is always noticed, or never, would test one way only.
    const bool both_ways = counts.files > 0 && counts.models > 0 && counts.tokens > 0 && counts.texts > 0;
    return count < 1000 || both_ways ? 0 : 1;
}
