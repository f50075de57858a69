// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the models read: an essay, and the diary of a lighthouse keeper, as long as one likes.

#include "../support/random.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace experiment {

/// Plain prose, so that the next word is neither certain nor a lottery.
inline constexpr std::string_view essay =
    "A language model writes one word at a time, and each word costs it a trip through everything it knows. "
    "Think of a cook who keeps every recipe in a long row of shelves. To season a single dish she walks along all of "
    "the shelves, looks at each card, and walks back. If a second guest orders, she can look at the cards for both "
    "dishes on the same walk, and the walk takes no longer. If eight guests order, it still takes hardly longer, "
    "because reading the cards was never the hard part: walking was. This is why a busy kitchen is a cheap kitchen, "
    "and why a cook who serves one guest at a time spends most of the evening on her feet.\n\n"
    "Reading an order is another matter. When a guest hands over a letter of three pages with all his wishes, the cook "
    "can take in the whole page at once, because all of the words are already there. She walks along the shelves one "
    "time and thinks about every word while she walks. Now it is the thinking that takes long. The walk is short, and "
    "her head is full. So there is a pause before the first dish arrives, and it grows with the length of the letter; "
    "after that the dishes come one by one, in an even rhythm, like drops from a tap.\n\n"
    "A good cook also takes notes. When she has understood a sentence of the letter, she writes down what matters, and "
    "she never reads that sentence again. Without the notes she would have to start from the first line for every new "
    "dish. The notes take room on the table, and for a very long letter they can take more room than the shelves "
    "themselves. That is the price of a good memory. She can keep them on small cards of the same size, so that a new "
    "note always fits into the next free place, and no corner of the table stays empty because somebody reserved it "
    "for a letter that turned out to be short.\n\n"
    "Finally, she can shrink the recipes. Most of what is written on a card can be said with fewer strokes of the pen. "
    "The soup tastes the same to nearly everyone, the row of shelves is a quarter as long, and every walk is four "
    "times as short. None of this makes her a better cook. It only makes her a faster one, and it shows where the time "
    "went: not into cooking, but into walking.";

/// Entry number `day` of the diary: about thirty words, none of them repeating another day's as a whole.
[[nodiscard]] inline std::string diary_entry(std::size_t day, examples::Random& random) {
    constexpr std::array winds{"north", "north-east", "east", "south-east",
                               "south", "south-west", "west", "north-west"};
    constexpr std::array weathers{
        "The sky was clear",        "Fog came in before noon",        "It rained without a break",
        "Low clouds hid the hills", "There was frost on the railing", "The sea was calm as glass"};
    constexpr std::array ships{"a coal barge",   "the mail boat",     "two fishing boats", "a schooner under half sail",
                               "a grey trawler", "a ferry, very late"};
    constexpr std::array chores{"I cleaned the lens",  "I wound the clockwork twice", "I painted the lower door",
                                "I mended the stairs", "I counted the oil and wrote", "I repaired the bell"};
    constexpr std::array thoughts{"Nobody answered the radio.",           "The cat brought a gull feather.",
                                  "My brother's letter is still unread.", "The new lamp is brighter than I like.",
                                  "I slept badly and dreamt of trees.",   "Bread is running low."};
    const auto pick = [&](const auto& words) { return std::string(words[random.below(words.size())]); };
    return "Day " + std::to_string(day) + ". " + pick(weathers) + ", wind from the " + pick(winds) + " at " +
           std::to_string(2 + random.below(38)) + " knots. At " + std::to_string(1 + random.below(11)) + ":" +
           std::to_string(10 + random.below(50)) + " " + pick(ships) + " passed " +
           std::to_string(1 + random.below(9)) + " miles out. " + pick(chores) + ". " + pick(thoughts) + "\n";
}

[[nodiscard]] inline std::string diary(std::size_t days) {
    examples::Random random(1);
    std::string text = "This is the diary of a lighthouse keeper.\n\n";
    for (std::size_t day = 1; day <= days; ++day) text += diary_entry(day, random);
    return text + "\nWhat kind of person wrote this diary, and what happened to the writer? Tell the story.";
}

}  // namespace experiment
