/// @file
/// Style and behaviour of the report's page.
#pragma once

namespace ferry::engine::html {

/// Title, style, facts, links, sections, version, script.
inline constexpr const char* page_frame = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{0}</title>
<style>{1}</style>
</head>
<body>
<header>
<h1>{0}</h1>
{2}<p class="note">A budget is the device's memory for experts. Two bounds stand beside every run: with all experts resident, and
clairvoyant, which also has to copy what no schedule could avoid. Where the host computes experts beside the device, the clairvoyant
bound that lets it is the one that holds. Point at anything for its numbers.</p>
<nav>
{3}</nav>
</header>
<main>
{4}</main>
<footer><p>Made by ferry {5}.</p></footer>
<script>{6}</script>
</body>
</html>
)html";

/// Name, picture.
inline constexpr const char* timeline_frame = R"html(<h3>{}</h3>
<div class="tools" hidden="hidden"><button type="button" data-act="in">Zoom in</button>
<button type="button" data-act="out">Zoom out</button><button type="button" data-act="left">Left</button>
<button type="button" data-act="right">Right</button><button type="button" data-act="all">All</button>
<span>Drag to move. Click, then turn the wheel to zoom, or use +, − and the arrow keys.</span></div>
<div class="timeline" tabindex="0" role="group" aria-label="Timeline: plus and minus zoom, arrow keys move">{}</div>
)html";

/// Two palettes, each chosen for its ground: k0-k7 tell series apart for colour-blind readers, too; p0-p5 are parts of a
/// whole, o0-o3 have an order, seq is one hue from pale to full. Paper is always light.
inline constexpr const char* style = R"css(
:root{color-scheme:light dark;
--page:#f6f5f2;--card:#fff;--ink:#1b1b19;--soft:#5a5852;--line:#e3e1da;--bound:#77746b;--band:#a5a299;--link:#0b4fb3;
--k0:#0b5cd0;--k1:#c4471c;--k2:#0c7660;--k3:#86208a;--k4:#a07a2e;--k5:#8a6ff0;--k6:#6f3023;--k7:#1f8fa5;
--p0:#2465bd;--p1:#9cc2f1;--p2:#cf4a1d;--p3:#dfae35;--p4:#96938a;--p5:#7b3aa6;
--o0:#b5dfda;--o1:#6cbdb5;--o2:#238d86;--o3:#0a5450;--seq:#0a49a6;--device:#2465bd;--expert:#2b9aa8;--ahead:#6f3023;--free:#0c7660}
@media screen and (prefers-color-scheme:dark){:root{
--page:#141413;--card:#1d1d1b;--ink:#f1efe9;--soft:#b4b1a7;--line:#383732;--bound:#a19e94;--band:#6d6a62;--link:#93bbff;
--k0:#a5bdfe;--k1:#dd8236;--k2:#46dfaf;--k3:#c97abd;--k4:#e2c630;--k5:#7d7be2;--k6:#d0534c;--k7:#1b97a0;
--p0:#4c8eea;--p1:#b4d2fa;--p2:#e4683a;--p3:#e0bb48;--p4:#8b887e;--p5:#ad7fdd;
--o0:#1f514d;--o1:#2f8680;--o2:#5bc0b8;--o3:#baeee8;--seq:#8fc0ff;--device:#4c8eea;--expert:#35aab8;--ahead:#dba88c;--free:#46dfaf}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 20px}
header{padding-top:32px}
h1{font-size:28px;line-height:1.2;margin:0 0 12px;overflow-wrap:anywhere}
h2{font-size:19px;margin:0 0 2px}
h3{font-size:14px;margin:18px 0 2px;overflow-wrap:anywhere}
p{margin:0 0 10px;max-width:88ch}
.note,footer{color:var(--soft);font-size:13px}
footer{padding-bottom:32px}
a{color:var(--link)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0 0 14px;font-size:14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 18px;font-size:14px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px 20px;margin:0 0 18px}
.scroll{overflow:auto;max-width:100%}
svg.chart{display:block;max-width:100%;height:auto;min-width:1040px}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .bold{font-weight:600}
svg .inside{fill:var(--card)}svg .halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}.lead{stroke:var(--band);stroke-width:.75;fill:none}
.row{fill:var(--line);fill-opacity:.45}
.bound{stroke:var(--bound);fill:none;stroke-width:2}.bound.dashed{stroke-dasharray:9 3 2 3}.bound.thin{stroke-width:1.1;stroke-dasharray:4 3}

.k0{--c:var(--k0)}.k1{--c:var(--k1)}.k2{--c:var(--k2)}.k3{--c:var(--k3)}
.k4{--c:var(--k4)}.k5{--c:var(--k5)}.k6{--c:var(--k6)}.k7{--c:var(--k7)}
.p0{--c:var(--p0)}.p1{--c:var(--p1)}.p2{--c:var(--p2)}.p3{--c:var(--p3)}.p4{--c:var(--p4)}.p5{--c:var(--p5)}
.o0{--c:var(--o0)}.o1{--c:var(--o1)}.o2{--c:var(--o2)}.o3{--c:var(--o3)}.seq{--c:var(--seq)}
.t0{--c:var(--device)}.t1{--c:var(--expert)}.t2{--c:var(--p5)}.t3{--c:var(--band)}.t4{--c:var(--p2)}.t5{--c:var(--free)}
.t6{--c:var(--p3)}.t7{--c:var(--ahead)}.t8{--c:var(--p4)}.neutral{--c:var(--bound)}
.fill{fill:var(--c)}.part{fill:var(--c);stroke:var(--card);stroke-width:.6}
.ln{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.touch{fill:none;stroke:transparent;stroke-width:12;pointer-events:stroke}
.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:9 3 2 3}
.legend{display:flex;flex-wrap:wrap;gap:2px 4px;margin:6px 0 0;padding:0;list-style:none;font-size:13px}
.legend li{display:flex;align-items:center;gap:5px;padding:1px 6px;border-radius:4px;cursor:default}
.legend li:hover,.legend li:focus{background:var(--line);outline:none}
.legend svg{flex:none}
[data-k]{transition:opacity .12s}.faded{opacity:.13}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{padding:3px 6px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{position:sticky;top:0;background:var(--card);color:var(--soft);vertical-align:bottom;font-weight:600;white-space:normal}
th[tabindex]{cursor:pointer}th[tabindex]:hover{color:var(--ink)}th:focus-visible{outline:2px solid var(--link);outline-offset:-2px}
th[aria-sort=ascending]::after{content:" ▲"}th[aria-sort=descending]::after{content:" ▼"}
.text{text-align:left}
.table{max-height:80vh}
tbody tr:hover{background:var(--page)}
.timeline{touch-action:pan-y}
.timeline:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.tools{display:flex;gap:6px;margin:8px 0;align-items:center;color:var(--soft);font-size:13px;flex-wrap:wrap}
.tools[hidden]{display:none}
.tools button{font:inherit;color:var(--ink);background:var(--page);border:1px solid var(--line);border-radius:5px;padding:2px 10px;cursor:pointer}
.timeline svg svg{cursor:grab}
@media (max-width:700px){header,main,footer{padding-left:12px;padding-right:12px}section{padding:14px 12px}}
@page{size:A4 landscape;margin:11mm}
@media print{
:root{color-scheme:light;--page:#fff}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
body{font-size:9pt}h1{font-size:18pt}header,main,footer{max-width:none;padding:0}header{padding-top:0}
nav,.tools,footer,.legend.labelled{display:none}p{max-width:none}
section{border:0;padding:0;margin:0 0 8mm;border-radius:0}
dl{grid-template-columns:max-content 1fr max-content 1fr}
h2,h3,h2+.note{break-after:avoid}.note,thead{break-inside:avoid}figure+.note{break-before:avoid}
figure,svg.chart,.legend,tr{break-inside:avoid;page-break-inside:avoid}
svg.chart{min-width:0;max-height:172mm}#speed svg.chart{max-height:122mm}
.scroll{overflow:visible;max-height:none}
table{font-size:6.6pt}th,td{padding:1.5px 3px}th{position:static}thead{display:table-header-group}
.text{white-space:normal;overflow-wrap:anywhere}
}
figure{margin:0 0 6px}
)css";

/// Sorts tables, lights up a series, and moves timelines. The page says everything without it.
inline constexpr const char* script = R"js(
'use strict';
for (const table of document.querySelectorAll('table')) {
  const sort = event => {
    const th = event.target.closest('th');
    if (!th || (event.type === 'keydown' && event.key !== 'Enter' && event.key !== ' ')) return;
    event.preventDefault();
    const text = th.classList.contains('text');
    const down = th.ariaSort ? th.ariaSort !== 'descending' : !text;
    for (const other of th.parentNode.children) other.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const value = row => row.cells[th.cellIndex].dataset.v ?? '';
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (x === '' || y === '') return (x === '') - (y === '');  // what is not known comes last
      const less = text ? x.localeCompare(y, 'en', {numeric: true}) : x - y;
      return down ? -less : less;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  };
  for (const th of table.tHead.rows[0].cells) th.tabIndex = 0;
  table.tHead.addEventListener('click', sort);
  table.tHead.addEventListener('keydown', sort);
}
for (const figure of document.querySelectorAll('figure')) {
  const light = event => {
    const one = event.target.closest?.('[data-k]');
    for (const each of figure.querySelectorAll('[data-k]')) {
      each.classList.toggle('faded', !!one && each.dataset.k !== one.dataset.k && each.tagName === 'g');
    }
  };
  const dark = () => light({target: figure});
  figure.addEventListener('pointerover', light);
  figure.addEventListener('pointerleave', dark);
  figure.addEventListener('focusin', light);
  figure.addEventListener('focusout', dark);
}
for (const box of document.querySelectorAll('.timeline')) {
  const view = box.querySelector('svg svg'), axis = box.querySelector('.ticks');
  const whole = view.viewBox.baseVal.width, high = view.viewBox.baseVal.height;
  const left = +view.getAttribute('x'), wide = +view.getAttribute('width');
  const tick = axis.querySelector('line').cloneNode(), label = axis.querySelector('text').cloneNode();
  let from = 0, span = whole;
  const show = () => {
    span = Math.min(whole, Math.max(span, whole / 5000));
    from = Math.min(whole - span, Math.max(0, from));
    view.setAttribute('viewBox', `${from} 0 ${span} ${high}`);
    const raw = span / 8, decade = 10 ** Math.floor(Math.log10(raw));
    const step = decade * [1, 2, 5, 10].find(n => n * decade >= raw * 0.999);
    const unit = whole >= 2e6 ? ['s', 1e6] : whole >= 2e3 ? ['ms', 1e3] : ['µs', 1];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit[1]) - 1e-9));
    axis.replaceChildren();
    for (let i = Math.ceil(from / step); i * step <= from + span; ++i) {
      const x = left + (i * step - from) / span * wide;
      const l = axis.appendChild(tick.cloneNode()), t = axis.appendChild(label.cloneNode());
      l.setAttribute('x1', x);
      l.setAttribute('x2', x);
      t.setAttribute('x', x);
      t.setAttribute('class', 'soft mid');
      t.textContent = (i * step / unit[1]).toLocaleString('en', {minimumFractionDigits: decimals}) + ' ' + unit[0];
    }
  };
  const zoom = (factor, at) => {
    const next = Math.min(whole, Math.max(span * factor, whole / 5000));
    from += (span - next) * at;
    span = next;
    show();
  };
  const pan = part => {
    from += part * span;
    show();
  };
  const acts = {
    in: () => zoom(0.5, 0.5), out: () => zoom(2, 0.5), left: () => pan(-0.25), right: () => pan(0.25),
    all: () => zoom(Infinity, 0)
  };
  const keys = {'+': 'in', '=': 'in', ArrowUp: 'in', '-': 'out', ArrowDown: 'out', ArrowLeft: 'left',
                ArrowRight: 'right', Home: 'all', 0: 'all'};
  const place = event => {
    const r = view.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - r.left) / r.width));
  };
  box.addEventListener('wheel', event => {  // the page scrolls until the timeline is in use
    if (!event.ctrlKey && document.activeElement !== box) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 600);
    else zoom(2 ** (event.deltaY / 240), place(event));
  }, {passive: false});
  box.addEventListener('keydown', event => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[act]();
  });
  let grabbed = null;
  view.addEventListener('pointerdown', event => {
    grabbed = {x: event.clientX, from};
    view.setPointerCapture(event.pointerId);
  });
  view.addEventListener('pointermove', event => {
    if (!grabbed) return;
    from = grabbed.from - (event.clientX - grabbed.x) / view.getBoundingClientRect().width * span;
    show();
  });
  view.addEventListener('pointerup', () => grabbed = null);
  view.addEventListener('pointercancel', () => grabbed = null);
  const tools = box.previousElementSibling;
  tools.hidden = false;
  tools.addEventListener('click', event => acts[event.target.dataset.act]?.());
}
)js";

}  // namespace ferry::engine::html
