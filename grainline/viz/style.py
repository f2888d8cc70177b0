"""The style sheet of the pages: light and dark, narrow and wide.

Colours are custom properties. Those of series are of Okabe and Ito, adjusted for contrast on each ground.
"""

STYLE = """
:root { --ink: #1d2129; --soft: #596273; --line: #d5d9e0; --ground: #ffffff; --panel: #f6f7f9;
  --s0: #0062a3; --s1: #b84a00; --s2: #00765a; --s3: #8d3f77; --s4: #6b5c00; --s5: #3a3f47;
  --good: #00694f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaee; --soft: #a6aebb; --line: #3a404a;
  --ground: #14171b; --panel: #1d2126; --s0: #6bb6ee; --s1: #f0954f; --s2: #3fc7a0; --s3: #dc9cc4;
  --s4: #dccb4a; --s5: #c9ced6; --good: #4fd0aa; } }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .series { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
small, .hint, .notes, figcaption, dt, details { color: var(--soft); font-size: .875rem; font-weight: 400; }
.summary { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 0; }
.summary div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, .facts td { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 400; font-size: .875rem; }
tbody th { font-weight: 400; }
td.value { font-weight: 600; }
td.drawn, th.drawn { text-align: left; width: 192px; }
.whisker { display: block; }
.hint, .notes { margin: .5rem 0 0; }
.notes { padding-left: 1.1rem; }
details { margin-top: .6rem; }
summary { cursor: pointer; padding: .3rem 0; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; }
.chart { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; }
.chart figcaption { color: var(--ink); font-weight: 600; margin-bottom: .4rem; }
.chart > svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: .4rem 0 0;
  font-size: .875rem; color: var(--soft); }
blockquote { margin: 0 0 .8rem; padding-left: .8rem; border-left: 3px solid var(--line); max-width: 46rem; }
img { display: block; max-width: 100%; border-radius: .25rem; }
img.query { width: 11rem; margin-bottom: .8rem; }
.hits { list-style: none; margin: 0; padding: 0; display: grid; gap: .7rem; }
.hits.pictures { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
.pictures li > img { width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--panel); }
.hits li { border: 2px solid transparent; border-radius: .4rem; padding: .25rem; }
.hits li.right { border-color: var(--good); }
.hits p { margin: 0; max-width: 46rem; }
.score { font-size: .875rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.good { color: var(--good); }
.heat { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr)); gap: 1rem;
  margin-top: 1rem; }
.heat figure > img { width: 100%; max-width: 18rem; }
.scale { display: flex; align-items: center; gap: .4rem; font-variant-numeric: tabular-nums; }
.bar { width: 90px; height: 8px; }
@media (max-width: 40rem) { .drawn, .extra { display: none; } th, td { padding: .3rem .35rem; }
  tbody th, caption { white-space: normal; } table { font-size: .875rem; } .card, .chart { padding: .7rem; }
  .hits.pictures { grid-template-columns: repeat(3, 1fr); gap: .3rem; } }
"""
