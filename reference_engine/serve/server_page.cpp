// The page at /: one file, nothing from elsewhere.
#include "serve/server.hpp"

namespace ferry::engine {

const char* const server_page = R"page(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Ferry</title>
<style>
  :root { color-scheme: light dark; --line: #8886; --soft: #8882; --accent: #2a78d6; }
  * { box-sizing: border-box; }
  body { margin: 0; font: 15px/1.5 system-ui, sans-serif; display: grid; grid-template: 100vh / 1fr 320px; }
  main { display: flex; flex-direction: column; min-width: 0; }
  header { padding: .6rem 1rem; border-bottom: 1px solid var(--line); display: flex; gap: 1rem; align-items: baseline; }
  h1 { font-size: 1rem; margin: 0; }
  #model { opacity: .7; }
  #talk { flex: 1; overflow-y: auto; padding: 1rem; }
  .turn { max-width: 46rem; margin: 0 auto .8rem; padding: .6rem .8rem; border-radius: .5rem; white-space: pre-wrap; overflow-wrap: anywhere; }
  .user { background: var(--soft); }
  .failed { color: #c0392b; }
  form { display: flex; gap: .5rem; padding: .8rem 1rem; border-top: 1px solid var(--line); }
  textarea { flex: 1; resize: none; font: inherit; padding: .5rem; border: 1px solid var(--line); border-radius: .4rem; background: transparent; color: inherit; }
  button, select, input { font: inherit; padding: .4rem .8rem; border: 1px solid var(--line); border-radius: .4rem; background: var(--soft); color: inherit; }
  button.go { background: var(--accent); color: white; border-color: var(--accent); }
  aside { border-left: 1px solid var(--line); padding: .8rem 1rem; overflow-y: auto; }
  aside h2 { font-size: .9rem; margin: 1rem 0 .3rem; }
  table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
  td { padding: .1rem 0; border-bottom: 1px solid var(--soft); }
  td:last-child { text-align: right; }
  .bar { height: .5rem; background: var(--soft); border-radius: .25rem; overflow: hidden; display: flex; }
  .bar i { display: block; height: 100%; }
  svg { width: 100%; height: 60px; display: block; }
  label { display: flex; justify-content: space-between; gap: .5rem; margin: .2rem 0; font-size: .9rem; }
  label input { width: 6rem; padding: .1rem .4rem; }
  @media (max-width: 760px) { body { grid-template: auto / 1fr; } aside { border-left: 0; border-top: 1px solid var(--line); } #talk { min-height: 50vh; } }
</style>
<main>
  <header><h1>Ferry</h1><span id="model"></span><button id="new" type="button" style="margin-left:auto">New conversation</button></header>
  <div id="talk" aria-live="polite"></div>
  <form id="form"><textarea id="text" rows="2" placeholder="Say something. Enter sends, Shift+Enter begins a line." autofocus></textarea>
  <button class="go" id="go">Send</button></form>
</main>
<aside>
  <h2>Request</h2>
  <label>Temperature <input id="temperature" type="number" min="0" max="2" step="0.1" placeholder="model's"></label>
  <label>Tokens at most <input id="tokens" type="number" min="1" value="256"></label>
  <label>API key <input id="key" type="password" placeholder="none"></label>
  <h2>Experts in decode: <span id="stack"></span></h2>
  <div class="bar" id="bar" role="img" aria-label="hits, late hits, misses, on the host"></div>
  <table id="experts"></table>
  <h2>Link, MB/s</h2>
  <svg id="link" viewBox="0 0 300 60" preserveAspectRatio="none" role="img" aria-label="bytes copied a second"></svg>
  <h2>Server</h2>
  <table id="numbers"></table>
</aside>
<script>
const $ = id => document.getElementById(id);
let messages = [], running = null, last = null, rates = [];
const headers = () => $('key').value ? {Authorization: 'Bearer ' + $('key').value} : {};
function turn(kind, text) {
  const div = document.createElement('div');
  div.className = 'turn ' + kind;
  div.textContent = text;
  $('talk').append(div);
  $('talk').scrollTop = $('talk').scrollHeight;
  return div;
}
async function send() {
  const text = $('text').value.trim();
  if (!text || running) return;
  $('text').value = '';
  messages.push({role: 'user', content: text});
  turn('user', text);
  const shown = turn('assistant', '');
  const body = {messages, stream: true, max_tokens: +$('tokens').value || 256};
  if ($('temperature').value !== '') body.temperature = +$('temperature').value;
  running = new AbortController();
  $('go').textContent = 'Stop';
  let answer = '';
  try {
    const reply = await fetch('v1/chat/completions', {method: 'POST', signal: running.signal,
      headers: {'Content-Type': 'application/json', ...headers()}, body: JSON.stringify(body)});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = '';;) {
      const {value, done} = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n\n');
      rest = lines.pop();
      for (const line of lines) {
        const data = line.replace(/^data: /, '');
        if (data === '[DONE]') continue;
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        answer += event.choices[0]?.delta?.content ?? '';
        shown.textContent = answer;
        $('talk').scrollTop = $('talk').scrollHeight;
      }
    }
  } catch (error) {
    if (error.name !== 'AbortError') turn('failed', error.message);
  }
  messages.push({role: 'assistant', content: answer});
  running = null;
  $('go').textContent = 'Send';
}
$('form').onsubmit = event => { event.preventDefault(); running ? running.abort() : send(); };
$('text').onkeydown = event => { if (event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); send(); } };
$('new').onclick = () => { messages = []; $('talk').replaceChildren(); };
function rows(table, pairs) {
  table.replaceChildren(...pairs.map(([name, value]) => {
    const tr = document.createElement('tr');
    for (const text of [name, value]) tr.append(Object.assign(document.createElement('td'), {textContent: text}));
    return tr;
  }));
}
const share = (part, whole) => whole ? (100 * part / whole).toFixed(1) + '%' : '-';
const size = bytes => bytes < 1e6 ? (bytes / 1e3).toFixed(0) + ' kB' : bytes < 1e9 ? (bytes / 1e6).toFixed(1) + ' MB' : (bytes / 1e9).toFixed(2) + ' GB';
async function look() {
  try {
    const s = await (await fetch('stats', {headers: headers()})).json(), d = s.decode, now = Date.now();
    $('stack').textContent = s.stack;
    const parts = [['hits', d.hits, '#2a78d6'], ['late hits', d.late_hits, '#1baf7a'], ['misses', d.misses, '#eb6834'],
                   ['on the host', d.host_computed, '#8a63d2'], ['replaced or skipped', d.substituted + d.skipped, '#999']];
    $('bar').replaceChildren(...parts.map(([name, n, color]) => {
      const i = document.createElement('i');
      i.style.cssText = `width:${100 * n / Math.max(1, d.requests)}%;background:${color}`;
      i.title = name;
      return i;
    }));
    rows($('experts'), parts.map(([name, n]) => [name, n + ' (' + share(n, d.requests) + ')']));
    const bytes = s.prefill.bytes + d.bytes;
    if (last) rates.push((bytes - last.bytes) / Math.max(1, now - last.now) * 1e-3);
    rates = rates.slice(-60);
    const top = Math.max(1e-9, ...rates);
    $('link').innerHTML = `<polyline fill="none" stroke="currentColor" stroke-width="1.5" vector-effect="non-scaling-stroke" points="${
      rates.map((r, i) => (300 * i / 59).toFixed(1) + ',' + (58 - 56 * r / top).toFixed(1)).join(' ')}"/>`;
    const tokens = last ? (d.tokens - last.tokens) / Math.max(1, now - last.now) * 1e3 : 0;
    rows($('numbers'), [['tokens/s in decode', tokens.toFixed(1)], ['link now, MB/s', (rates.at(-1) ?? 0).toFixed(1)], ['copied', size(bytes)],
      ['stalled', (s.prefill.stall_s + d.stall_s).toFixed(2) + ' s'], ['experts\' memory', size(s.expert_memory_bytes)],
      ['keys and values', size(s.cache_bytes)], ['active, waiting', s.active + ', ' + s.waiting], ['requests', s.requests],
      ['time to first token', s.mean_first_token_s === null ? '-' : (1e3 * s.mean_first_token_s).toFixed(0) + ' ms']]);
    last = {bytes, now, tokens: d.tokens};
  } catch (error) { /* the server is gone, or the key is missing */ }
}
fetch('v1/models', {headers: headers()}).then(r => r.json()).then(m => { $('model').textContent = m.data[0].id; }).catch(() => {});
look();
setInterval(look, 1000);
</script>
</html>
)page";

}  // namespace ferry::engine
