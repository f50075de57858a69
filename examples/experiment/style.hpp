// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The style sheet of the page.

#include <string_view>

namespace experiment {

inline constexpr std::string_view style_sheet = R"css(
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --raised: #ffffff; --ink: #1d2024; --soft: #5d636b; --rule: #e5e2da; --grid: #eceae3;
  --full: #2c6fb3; --small: #cb5a24; --other: #6d727a; --free: #efede6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --raised: #1b1e23; --ink: #e9e7e2; --soft: #a3a8b0; --rule: #2e3238; --grid: #262a30;
    --full: #6cabef; --small: #f0894f; --other: #949aa3; --free: #23272d;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 0 28px 72px; }
h1, h2 { font-family: "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", Georgia, serif; font-weight: 600;
  line-height: 1.15; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
h1 { font-size: clamp(34px, 5vw, 56px); max-width: 18em; }
h2 { font-size: 28px; }
p { margin: 0 0 14px; }
.eyebrow { color: var(--small); font-size: 13px; font-weight: 600; letter-spacing: 0.08em; text-transform: uppercase;
  margin: 0 0 14px; }
header { padding: 72px 0 40px; }
header .on { color: var(--soft); font-size: 18px; margin: 18px 0 0; overflow-wrap: anywhere; }
.stats { display: grid; grid-template-columns: repeat(4, 1fr); gap: 0 32px; border-top: 1px solid var(--rule);
  padding: 24px 0 0; margin: 0; }
.stats div { min-width: 0; }
.stats dt { font-family: "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif; font-size: 38px;
  line-height: 1.2; white-space: nowrap; }
.stats dd { margin: 2px 0 0; color: var(--soft); font-size: 14.5px; line-height: 1.45; }
.paste { margin: 36px 0 48px; padding: 14px 18px; background: var(--raised); border: 1px solid var(--rule);
  border-radius: 8px; font: 13px/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  user-select: all; overflow-wrap: anywhere; }
section { display: grid; grid-template-columns: 290px minmax(0, 1fr); gap: 20px 56px; border-top: 1px solid var(--rule);
  padding: 52px 0; }
.say .number { color: var(--small); font-weight: 600; margin: 0 0 6px; }
.say .look { font-size: 18px; line-height: 1.5; margin: 14px 0; }
.say p { color: var(--soft); font-size: 15px; }
.say .look { color: var(--ink); }
figure { margin: 0 0 36px; }
figure:last-child { margin-bottom: 0; }
figcaption { margin: 0 0 10px; font-weight: 600; }
figcaption span { display: block; font-weight: 400; color: var(--soft); font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; padding: 0; margin: 0 0 8px; list-style: none; font-size: 13.5px;
  color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 7px; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 16px; }
.answers > div { background: var(--raised); border: 1px solid var(--rule); border-top: 3px solid currentColor;
  border-radius: 8px; padding: 14px 18px 16px; }
.answers h3 { margin: 0 0 6px; font-size: 14px; }
.answers p { margin: 0; color: var(--ink); font-size: 14.5px; white-space: pre-wrap; overflow-wrap: anywhere; }
.question { font-size: 15px; color: var(--soft); overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 15px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 8px 0 8px 16px; border-bottom: 1px solid var(--rule); font-weight: 400;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; color: var(--soft); white-space: normal; }
thead th { font-weight: 600; }
ol.points { list-style: none; padding: 0; margin: 12px 0 0; font-size: 14.5px; columns: 2; column-gap: 32px; }
ol.points li { break-inside: avoid; display: flex; gap: 10px; margin: 0 0 10px; line-height: 1.4; }
ol.points b { flex: none; width: 20px; height: 20px; border-radius: 50%; color: var(--paper); font-size: 12px;
  line-height: 20px; text-align: center; }
ol.points span span { display: block; color: var(--soft); font-size: 13.5px; }
footer { border-top: 1px solid var(--rule); padding: 32px 0 0; color: var(--soft); font-size: 14px; }
footer p { max-width: 60em; }

svg { display: block; max-width: 100%; height: auto; font-family: inherit; overflow: visible; }
.pair { display: flex; flex-wrap: wrap; gap: 12px 20px; justify-content: space-between; }
.narrow { display: none; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick, svg .axis, svg .label { fill: var(--soft); }
svg .value { font-weight: 600; }
svg .inside { fill: var(--paper); font-weight: 700; font-size: 11px; }
svg .grid { stroke: var(--grid); }
svg .base { stroke: var(--soft); stroke-opacity: 0.6; }
svg .paper { stroke: var(--paper); stroke-width: 1.5; }
svg .roof { stroke: var(--ink); stroke-width: 1.5; stroke-opacity: 0.75; stroke-linecap: round; }
svg .free { fill: var(--free); }
.full { color: var(--full); }
.small { color: var(--small); }
.other { color: var(--other); }
svg .fill { fill: currentColor; }
svg .strong { fill-opacity: 0.8; }
svg .pale { fill-opacity: 0.35; }
svg .hollow { fill: none; stroke: currentColor; }
svg .area { fill: currentColor; fill-opacity: 0.1; }
svg .stroke { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
svg .thin { stroke-width: 0.8; }
svg .dashed { stroke-dasharray: 5 4; stroke-width: 1.4; }
svg .text { fill: currentColor; font-weight: 600; }
i.full, i.small, i.other { background: currentColor; }
i.pale { opacity: 0.4; }
i.strong { opacity: 0.85; }
i.free { background: var(--free); }
ol.points b.full { background: var(--full); }
ol.points b.small { background: var(--small); }

@media (max-width: 1000px) {
  section { grid-template-columns: minmax(0, 1fr); padding: 40px 0; }
  .say { max-width: 40em; }
}
@media (max-width: 720px) {
  main { padding: 0 20px 48px; }
  header { padding: 44px 0 28px; }
  .stats { grid-template-columns: repeat(2, 1fr); gap: 22px 24px; }
  .stats dt { font-size: 31px; }
  .wide { display: none; }
  .narrow { display: block; }
  .narrow svg { width: 100%; max-width: 480px; }
  ol.points { columns: 1; }
  th, td { padding: 7px 0 7px 10px; font-size: 14px; }
}
)css";

}  // namespace experiment
