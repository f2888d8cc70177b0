"""The style sheet of the pages: light and dark, narrow and wide, on screen and on paper.

Every colour is a custom property; those of series are of Okabe and Ito, adjusted for contrast on each ground.
"""

LIGHT = """--ink: #1d2129; --soft: #596273; --line: #d5d9e0; --ground: #ffffff; --panel: #f6f7f9;
  --s0: #0062a3; --s1: #b84a00; --s2: #00765a; --s3: #8d3f77; --s4: #6b5c00; --s5: #3a3f47;
  --good: #00694f; --bad: #a3330b; --mark: #ffe9b0;"""
DARK = """--ink: #e8eaee; --soft: #a6aebb; --line: #3a404a; --ground: #14171b; --panel: #1d2126;
  --s0: #6bb6ee; --s1: #f0954f; --s2: #3fc7a0; --s3: #dc9cc4; --s4: #dccb4a; --s5: #c9ced6;
  --good: #4fd0aa; --bad: #ff9d7a; --mark: #4d3d00;"""
THEMES = f"""
:root {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
@media print {{ :root {{ {LIGHT} }} }}
"""

FRAME = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main, footer { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem; }
footer { color: var(--soft); font-size: .875rem; border-top: 1px solid var(--line); }
footer p { margin: .2rem 0; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.4rem 0 .8rem; }
h3, h4 { font-size: 1rem; margin: 0 0 .6rem; }
h4 { font-size: .94rem; }
a { color: var(--s0); }
:focus-visible { outline: 3px solid var(--s0); outline-offset: 2px; border-radius: .2rem; }
small, .hint, .notes, figcaption, dt, details { color: var(--soft); font-size: .875rem; font-weight: 400; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: 1rem 0 0; padding: 0; }
nav a { display: inline-block; padding: .3rem 0; }
.summary { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 0; }
.summary div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
dd { margin: 0; font-size: 1.25rem; line-height: 1.35; font-weight: 600;
  font-variant-numeric: tabular-nums; }
dd small { display: block; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; margin: 0 0 1rem; }
.hint { margin: .5rem 0; max-width: 46rem; }
.notes { margin: .5rem 0; padding-left: 1.1rem; }
blockquote { margin: 0 0 .8rem; padding-left: .8rem; border-left: 3px solid var(--line); max-width: 46rem; }
mark { background: var(--mark); color: var(--ink); border-radius: .2rem; padding: 0 .15rem; }
figure { margin: 0; }
img { display: block; max-width: 100%; border-radius: .25rem; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.open { color: var(--soft); }
"""

TABLES = """
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; overflow-wrap: anywhere; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, .facts td { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 400; font-size: .875rem; }
th.name, td.name { text-align: left; }
tbody th { font-weight: 400; }
td.value { font-weight: 600; }
td.drawn, th.drawn { text-align: left; width: 192px; }
.whisker { display: block; }
details { margin-top: .6rem; }
summary { cursor: pointer; padding: .3rem 0; }
.steps td.text { text-align: left; white-space: normal; min-width: 14rem; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
"""

CHARTS = """
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .ring { fill: var(--ground); stroke-width: 1.6; }
svg .series { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
.chart { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; }
.chart figcaption { color: var(--ink); font-weight: 600; margin-bottom: .4rem; }
.chart > svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: .4rem 0 0;
  font-size: .875rem; color: var(--soft); }
"""

EXAMPLES = """
img.query { width: 11rem; margin-bottom: .8rem; }
.hits { list-style: none; margin: 0 0 1rem; padding: 0; display: grid; gap: .7rem; }
.hits.pictures { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
.hits.pictures.large { grid-template-columns: repeat(auto-fill, minmax(min(13rem, 100%), 1fr)); }
.pictures > li > img { width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--panel); }
.hits > li { border: 2px solid transparent; border-radius: .4rem; padding: .25rem; min-width: 0; }
.signs { flex-direction: column; }
.signs li { display: flex; gap: .5rem; align-items: center; }
.signs img { height: .9rem; border-radius: 0; }
.hits li.right { border-color: var(--good); }
.hits p { margin: 0; max-width: 46rem; }
.score { font-size: .875rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.pair { display: grid; grid-template-columns: 11rem minmax(0, 1fr); gap: 1rem; align-items: start; }
.pair > img { width: 100%; }
.pair > .chart { max-width: 34rem; }
.pair + .scroll { margin-top: 1rem; }
.pair dl { margin: 0; display: grid; gap: .8rem; }
.pair dd { font-size: 1rem; font-weight: 400; }
.sides { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.sides img { width: 11rem; }
.sides p { margin: .3rem 0 0; }
.gone { background: var(--panel); border: 2px dashed var(--soft); border-radius: .4rem; padding: 1rem;
  margin: 0; }
"""

# Every overlay lies in the list of sentences and is drawn over the picture: .look is what it is placed in. A
# long list scrolls, so that the picture stays in sight. What is pointed at lies above what has the focus,
# that above what is chosen, and a phrase above its sentence.
LOOK = """
.look { --side: 15rem; position: relative; display: grid; gap: .6rem 1.2rem; align-items: start;
  grid-template-columns: var(--side) minmax(0, 1fr); }
.look > img, .look > .gone { width: min(var(--side), 100%); aspect-ratio: 1; object-fit: contain;
  background: var(--panel); }
.look fieldset { border: 0; margin: 0; padding: 0; min-width: 0; }
.look legend { padding: 0; color: var(--soft); font-size: .875rem; }
.look ol { list-style: none; margin: .3rem 0 0; padding: 0; }
.look fieldset ol { max-height: 28rem; overflow-y: auto; }
.look li { border-left: 4px solid var(--line); padding: .2rem 0 .3rem .6rem; margin: 0 0 .35rem; }
.look li.yes { border-left-color: var(--good); }
.look li.no { border-left: 4px dashed var(--bad); }
.look li.maybe { border-left: 4px dotted var(--soft); }
.look li:has(> input) { display: flex; flex-wrap: wrap; gap: 0 .5rem; align-items: baseline; }
.look label { cursor: pointer; flex: 1; min-width: 0; }
.look li:has(> input:checked) { background: var(--panel); }
.look .phrases { list-style: none; flex: 0 0 100%; display: flex; flex-wrap: wrap; gap: .3rem;
  margin: .3rem 0 0; padding: 0 0 0 1.4rem; }
.look .phrases li { border: 1px solid var(--line); border-radius: .4rem; margin: 0; padding: .05rem .5rem;
  font-size: .875rem; min-width: 0; }
.look .phrases li:has(> input:checked) { border-color: var(--s0); }
.phrases .verdict { display: inline; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr));
  gap: 0 1rem; }
.tiles .look { --side: 100%; grid-template-columns: minmax(0, 1fr); }
.look .over { position: absolute; top: 0; left: 0; width: min(var(--side), 100%); aspect-ratio: 1;
  object-fit: contain; opacity: 0; pointer-events: none; transition: opacity .15s; }
.look input:checked ~ .over { opacity: 1; z-index: 1; }
.look input:focus ~ .over { opacity: 1; z-index: 2; }
.look li:hover > .over { opacity: 1; z-index: 3; }
.look .phrases li:hover > .over { z-index: 4; }
.verdict { display: block; font-size: .875rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.verdict b { white-space: nowrap; }
.scale { display: flex; align-items: center; gap: .4rem; font-variant-numeric: tabular-nums;
  font-size: .875rem; color: var(--soft); margin: .3rem 0 0; }
.bar { width: 90px; height: 8px; }
"""

SCREENS = """
@media (max-width: 40rem) { .drawn, .extra { display: none; } th, td { padding: .3rem .35rem; }
  tbody th, caption, td:nth-child(3) { white-space: normal; }
  table { font-size: .875rem; } .card, .chart { padding: .7rem; }
  .hits.pictures { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .3rem; }
  .look, .pair { grid-template-columns: minmax(0, 1fr); } .look { --side: 18rem; }
  .look fieldset ol { max-height: 20rem; } }
@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
@media print { .card, .hits li, tr, figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
  thead { display: table-header-group; } nav, .look input, .look legend, .look li.alone { display: none; }
  .look li:has(> input) { align-items: flex-start; }
  .scroll { overflow: visible; } .look { --side: 9rem; } .look fieldset ol { max-height: none; }
  .look .over { position: static; opacity: 1; width: 4.5rem; transition: none; }
  .look .phrases li { flex-direction: column; width: 6.5rem; break-inside: avoid; }
  body { font-size: 11pt; } }
"""

STYLE = THEMES + FRAME + TABLES + CHARTS + EXAMPLES + LOOK + SCREENS
