// Draws a chart over each table of the page that has a kind (html_page.hpp), moves timelines, and sorts tables. All
// numbers come from the page's JSON.
'use strict';
const {tables} = JSON.parse(document.getElementById('data').textContent);
const charts = new Map();  // figure: its chart
const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
const shorten = (text, most) => [...text].length > most ? [...text].slice(0, most - 1).join('') + '…' : text;

function number(v) {
  if (v === 0) return '0';
  if (v >= 1e9) return v.toExponential(2);
  const digits = v >= 100 ? 0 : v >= 10 ? 1 : 2;
  return v.toLocaleString('en', v < 0.1 ? {maximumSignificantDigits: 3} :
                                    {minimumFractionDigits: digits, maximumFractionDigits: digits});
}

const microseconds = (v, range) => range >= 2e6 ? [v / 1e6, 's'] : range >= 2e3 ? [v / 1e3, 'ms'] : [v, 'µs'];

// An axis with numbers on it.
function amounts(title, scale, step) {
  const axis = {
    type: scale.log ? 'logarithmic' : 'linear', title: {display: true, text: title}, grid: {color: colour('line')},
    min: scale.min ?? (scale.log ? undefined : 0), ticks: {maxRotation: 0, autoSkipPadding: 12, stepSize: step}
  };
  if ('max' in scale) axis.max = scale.max;
  if ('reach' in scale) axis.suggestedMax = scale.reach;
  if (scale.log) axis.ticks.callback = v => /^[125]/.test(v.toExponential()) ? v.toLocaleString('en', {maximumSignificantDigits: 6}) : null;
  return axis;
}

// An axis with a name for each row, the first on top.
const names = texts => ({
  type: 'category', offset: true, grid: {display: false},
  ticks: {autoSkip: false, callback(v) { return shorten(texts[v], this.chart.width < 500 ? 15 : 36); }}
});

// Each kind gives what Chart.js takes and how high it is without its legend.
const kinds = {
  lines(t) {
    const datasets = [], indices = new Map();
    for (const [series, x, y, bound] of t.rows) {
      if (x === null) {
        const most = Math.max(...t.rows.map(row => row[1]));
        datasets.push({label: series, data: [{x: 0, y}, {x: most, y}], colour: colour('bound'), pointRadius: 0,
                       pointHitRadius: 8, pointStyle: 'line'});
        continue;
      }
      if (!indices.has(series)) {
        const look = t.looks[series], of = datasets.length;
        indices.set(series, of);
        const shared = {colour: colour('k' + look % 8), data: []};
        const step = Math.floor(look / 8) % 4;
        datasets.push({...shared, label: series, borderDash: [[], [7, 3], [2, 3], [9, 3, 2, 3]][step], pointRadius: 4,
                       pointStyle: ['circle', 'rect', 'triangle', 'rectRot'][step]});
        datasets.push({...shared, data: [], label: series + ', its clairvoyant bound', of, showLine: false,
                       pointStyle: 'line', pointRadius: 8, pointBorderWidth: 2});
      }
      const at = indices.get(series);
      datasets[at].data.push({x, y});
      if (bound !== null) datasets[at + 1].data.push({x, y: bound});
    }
    for (const d of datasets) d.borderColor = d.backgroundColor = d.colour;
    const fade = (chart, index) => {  // all but one series
      for (const [i, d] of chart.data.datasets.entries()) {
        d.borderColor = d.backgroundColor = index < 0 || i === index || d.of === index ? d.colour : d.colour + '22';
      }
      chart.update('none');
    };
    return {
      high: 380, type: 'line', data: {datasets},
      options: {
        interaction: {mode: 'nearest', intersect: false},
        scales: {x: amounts(t.x, {}), y: amounts(t.y, t.scale)},
        plugins: {
          legend: {
            labels: {filter: item => datasets[item.datasetIndex].of === undefined},
            onHover: (event, item, legend) => fade(legend.chart, item.datasetIndex),
            onLeave: (event, item, legend) => fade(legend.chart, -1),
            onClick: (event, item, legend) => {
              const {chart} = legend, shown = !chart.isDatasetVisible(item.datasetIndex);
              for (const [i, d] of datasets.entries()) {
                if (i === item.datasetIndex || d.of === item.datasetIndex) chart.setDatasetVisibility(i, shown);
              }
              chart.update();
            }
          },
          tooltip: {callbacks: {
            title: items => items.length ? `${t.x}: ${number(items[0].parsed.x)}` : '',
            label: item => `${item.dataset.label}: ${number(item.parsed.y)} ${t.unit}`
          }}
        }
      }
    };
  },

  curves(t) {
    const datasets = t.columns.slice(1).map((c, i) => ({
      label: c.name, data: t.rows.map(row => row[i + 1]), borderColor: colour('k' + i % 4),
      backgroundColor: colour('k' + i % 4), borderDash: i < 4 ? [] : [7, 3], pointRadius: 2
    }));
    return {
      high: 170, type: 'line', data: {labels: t.rows.map(row => row[0]), datasets},
      options: {
        interaction: {mode: 'index', intersect: false},
        scales: {x: {title: {display: true, text: t.x}, grid: {display: false}, ticks: {maxRotation: 0}},
                 y: amounts(t.y, t.scale, 50)},
        plugins: {tooltip: {callbacks: {
          title: items => items.length ? 'layer ' + items[0].label : '',
          label: item => `${item.dataset.label}: ${number(item.raw)} ${t.unit}`
        }}}
      }
    };
  },

  rows(t) {
    const thin = t.columns.some(c => c.draw === 'thin');
    const datasets = t.columns.slice(1).map((c, i) => {
      const shared = {label: c.name, data: t.rows.map(row => row[i + 1]), backgroundColor: colour(c.colour),
                      borderColor: colour(c.colour)};
      if (c.draw === 'bar') return {...shared, stack: 'bar', barThickness: 12, order: 1};
      if (c.draw === 'thin') return {...shared, stack: 'thin', barThickness: 3, order: 1};
      return {...shared, type: 'line', showLine: false, pointStyle: c.draw, pointRadius: 5, pointBorderWidth: 2,
              pointRotation: c.draw === 'line' ? 90 : 0};
    });
    const bars = t.columns.map((c, i) => c.draw === 'bar' ? i : 0).filter(i => i);
    return {
      high: 64 + (thin ? 28 : 20) * t.rows.length, type: 'bar', data: {labels: t.rows.map(row => row[0]), datasets},
      options: {
        indexAxis: 'y', interaction: {mode: 'index', axis: 'y', intersect: false},
        scales: {x: amounts(t.x, t.scale, t.scale.max === 100 ? 20 : undefined),
                 y: {...names(t.rows.map(row => row[0])), grid: {display: !bars.length, color: colour('line')}}},
        plugins: {tooltip: {callbacks: {
          title: items => items.length ? items[0].label : '',
          label(item) {
            const column = t.columns[item.datasetIndex + 1];
            const all = bars.reduce((sum, i) => sum + t.rows[item.dataIndex][i], 0);
            return `${column.name}: ${number(item.raw)} ${t.unit}` +
                (column.draw === 'thin' && all > 0 ? ` (${number(100 * item.raw / all)}%)` : '');
          }
        }}}
      }
    };
  },

  heat(t) {
    const hex = share => Math.round(255 * (0.05 + 0.95 * Math.min(1, share / 100))).toString(16).padStart(2, '0');
    const data = [], layers = t.columns.slice(1).map(c => Number(c.name));
    for (const [r, row] of t.rows.entries()) {
      for (const [i, share] of row.slice(1).entries()) {
        if (share !== null) data.push({x: [layers[i] - 0.47, layers[i] + 0.47], y: String(r), share});
      }
    }
    return {
      high: 64 + 18 * t.rows.length, type: 'bar',
      data: {
        labels: t.rows.map((row, r) => String(r)),
        datasets: [{label: 'hit rate', data, backgroundColor: data.map(d => colour('seq') + hex(d.share)), grouped: false,
                    barThickness: 16, borderSkipped: false}]
      },
      options: {
        indexAxis: 'y', interaction: {mode: 'nearest', intersect: true},
        scales: {
          x: {type: 'linear', min: -0.5, max: layers.at(-1) + 0.5, title: {display: true, text: t.x},
              grid: {display: false}, ticks: {precision: 0, includeBounds: false, maxRotation: 0}},
          y: names(t.rows.map(row => row[0]))
        },
        plugins: {
          legend: {
            onClick: null,
            labels: {generateLabels: () => [0, 25, 50, 75, 100].map(share => ({
              text: (share ? '' : 'hit rate ') + share + '%', fillStyle: colour('seq') + hex(share), lineWidth: 0,
              fontColor: colour('ink'), pointStyle: 'rect'
            }))}
          },
          tooltip: {callbacks: {
            title: items => items.length ? t.rows[items[0].raw.y][0] : '',
            label: item => `layer ${Math.round((item.raw.x[0] + item.raw.x[1]) / 2)}: ${item.raw.share.toFixed(1)} ${t.unit}`
          }}
        }
      }
    };
  },

  timeline(t) {
    const lanes = ['device', 'link', 'host'], end = t.rows.reduce((most, row) => Math.max(most, row[3] + row[4]), 0);
    const datasets = Object.keys(t.looks).map(kind => ({
      label: kind, backgroundColor: colour(t.looks[kind]), grouped: false, barPercentage: 0.8, categoryPercentage: 1,
      data: t.rows.filter(row => row[1] === kind).map(row => ({x: [row[3], row[3] + row[4]], y: row[0], row}))
    }));
    return {
      high: 200, end, type: 'bar', data: {labels: lanes, datasets},
      options: {
        indexAxis: 'y', interaction: {mode: 'nearest', intersect: true},
        scales: {
          x: {type: 'linear', min: 0, max: end, grid: {color: colour('line')},
              ticks: {maxRotation: 0, autoSkipPadding: 16, includeBounds: false, callback(v) {
                const [shown, unit] = microseconds(v, this.max);
                return shown.toLocaleString('en', {maximumFractionDigits: 6}) + ' ' + unit;
              }}},
          y: names(lanes)
        },
        plugins: {tooltip: {callbacks: {
          title: items => items.length ? items[0].raw.row[2] : '',
          label({raw: {row}}) {
            const [from, unit] = microseconds(row[3], end);
            return `${number(row[4])} µs, from ${from.toLocaleString('en', {maximumFractionDigits: 3})} ${unit}`;
          }
        }}}
      }
    };
  }
};

// How high a legend becomes at this width.
function legend_height(chart, wide) {
  let lines = 1, at = 0;
  for (const {label, of} of chart.data.datasets) {
    if (of !== undefined) continue;
    const long = 34 + 6.4 * label.length;
    if (at > 0 && at + long > wide) {
      at = 0;
      ++lines;
    }
    at += long;
  }
  return 22 * lines + 8;
}

function fit(figure) {
  const chart = charts.get(figure), plot = figure.querySelector('.plot');
  plot.style.height = chart.high + legend_height(chart, plot.clientWidth) + 'px';
}

function draw(figure) {
  charts.get(figure)?.destroy();
  const {high, end, ...made} = kinds[figure.table.kind](figure.table);
  made.options.plugins.legend = {
    ...made.options.plugins.legend,
    labels: {usePointStyle: made.type === 'line' || made.data.datasets.some(d => d.type), boxWidth: 12, boxHeight: 8,
             ...made.options.plugins.legend?.labels}
  };
  made.options.plugins.tooltip.filter = item => item.raw !== null;
  const chart = new Chart(figure.querySelector('canvas'), made);
  charts.set(figure, Object.assign(chart, {high, end}));
  fit(figure);
  chart.resize();
  return chart;
}

function set_colours() {
  Object.assign(Chart.defaults, {color: colour('ink'), borderColor: colour('line')});
  Object.assign(Chart.defaults.plugins.tooltip,
                {backgroundColor: colour('ink'), titleColor: colour('card'), bodyColor: colour('card'), footerColor: colour('card')});
}

Object.assign(Chart.defaults, {animation: false, maintainAspectRatio: false, locale: 'en'});
Chart.defaults.font.family = 'system-ui, sans-serif';
set_colours();

// A chart is made when it comes near the window, and all of them for paper.
const near = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    if (isIntersecting && !charts.has(target)) draw(target);
  }
}, {rootMargin: '800px'});
const again = which => {
  set_colours();
  for (const figure of which) draw(figure);
};
const drawn = [...document.querySelectorAll('figure')].filter(figure => {
  figure.table = tables[figure.dataset.table];
  return figure.table.kind;
});
for (const figure of drawn) near.observe(figure);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => again([...charts.keys()]));
addEventListener('beforeprint', () => {
  document.documentElement.classList.add('paper');
  again(drawn);
});
addEventListener('afterprint', () => {
  document.documentElement.classList.remove('paper');
  again(drawn);
});
let width = innerWidth;
addEventListener('resize', () => {  // a legend takes more or fewer lines
  if (innerWidth === width) return;
  width = innerWidth;
  for (const figure of charts.keys()) fit(figure);
});

for (const figure of drawn.filter(f => f.table.kind === 'timeline')) {
  const plot = figure.querySelector('.plot'), tools = document.createElement('div');
  const shown = () => charts.get(figure) ?? draw(figure), x = () => shown().options.scales.x;
  const show = (from, span) => {
    const chart = shown(), whole = chart.end;
    span = Math.min(whole, Math.max(span, whole / 5000));
    x().min = Math.min(whole - span, Math.max(0, from));
    x().max = x().min + span;
    chart.update('none');
  };
  const zoom = (factor, at) => {
    const {min, max} = x(), next = Math.min(shown().end, (max - min) * factor);
    show(min + (max - min - next) * at, next);
  };
  const pan = part => show(x().min + part * (x().max - x().min), x().max - x().min);
  const acts = {
    'Zoom in': () => zoom(0.5, 0.5), 'Zoom out': () => zoom(2, 0.5), Left: () => pan(-0.25), Right: () => pan(0.25),
    All: () => show(0, Infinity)
  };
  tools.className = 'tools';
  for (const [name, act] of Object.entries(acts)) {
    const button = tools.appendChild(document.createElement('button'));
    button.type = 'button';
    button.textContent = name;
    button.addEventListener('click', act);
  }
  tools.append('Drag to move. Click, then turn the wheel to zoom, or use +, − and the arrow keys.');
  plot.before(tools);
  plot.tabIndex = 0;
  plot.style.touchAction = 'pan-y';
  const area = event => {
    const {left, width} = shown().chartArea;
    return (event.clientX - plot.getBoundingClientRect().left - left) / width;
  };
  plot.addEventListener('wheel', event => {  // the page scrolls until the timeline is in use
    if (!event.ctrlKey && document.activeElement !== plot) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 600);
    else zoom(2 ** (event.deltaY / 240), Math.min(1, Math.max(0, area(event))));
  }, {passive: false});
  const keys = {'+': 'Zoom in', '=': 'Zoom in', ArrowUp: 'Zoom in', '-': 'Zoom out', ArrowDown: 'Zoom out',
                ArrowLeft: 'Left', ArrowRight: 'Right', Home: 'All', 0: 'All'};
  plot.addEventListener('keydown', event => {
    const act = acts[keys[event.key]];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  let grabbed = null;
  plot.addEventListener('pointerdown', event => grabbed = {at: area(event), from: x().min});
  addEventListener('pointerup', () => grabbed = null);
  addEventListener('pointercancel', () => grabbed = null);
  plot.addEventListener('pointermove', event => {
    if (grabbed) show(grabbed.from - (area(event) - grabbed.at) * (x().max - x().min), x().max - x().min);
  });
}

for (const element of document.querySelectorAll('table')) {
  const {rows} = element.closest('figure').table ?? tables[element.closest('figure').dataset.table];
  [...element.tBodies[0].rows].forEach((row, i) => row.values = rows[i]);
  const sort = event => {
    const th = event.target.closest('th');
    if (!th || (event.type === 'keydown' && event.key !== 'Enter' && event.key !== ' ')) return;
    event.preventDefault();
    const text = th.classList.contains('text'), at = th.cellIndex;
    const down = th.ariaSort ? th.ariaSort !== 'descending' : !text;
    for (const other of th.parentNode.children) other.removeAttribute('aria-sort');
    th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const order = ({values: a}, {values: b}) => {
      if (a[at] === null || b[at] === null) return (a[at] === null) - (b[at] === null);  // what is not known comes last
      const less = text ? a[at].localeCompare(b[at], 'en', {numeric: true}) : a[at] - b[at];
      return down ? -less : less;
    };
    element.tBodies[0].append(...[...element.tBodies[0].rows].sort(order));
  };
  for (const th of element.tHead.rows[0].cells) th.tabIndex = 0;
  element.tHead.addEventListener('click', sort);
  element.tHead.addEventListener('keydown', sort);
}
