#!/usr/bin/env python3
"""Tries the pages of `ferry report` in headless Chromium. Where CMake finds that and selenium, --quick is one of the tests.

    apt-get install chromium chromium-driver && pip install selenium
    python3 tests/report/try_report.py build/reference_engine/ferry [--quick] [--picture docs/report.png]

It makes runs, simulations, a sweep and a timeline with the bundled models, opens their pages from files, light and dark,
on a desktop's and on a phone's width, reads the numbers out of the drawn charts, and compares them with what it works
out from the commands' JSON. It points at each chart and reads the value that appears; sorts, zooms, hides, prints, and
reads the page without JavaScript. It fails if the browser's console has a message, or if anything was asked of a network.
--quick, which takes a third of the time, has a shorter text, and opens the pages of a sweep and of hostile names
alone, light on a desktop's width and dark on a phone's.
"""
import argparse
import base64
import json
import math
import pathlib
import re
import subprocess
import tempfile

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1400, 390)]
QUICK_LOOKS = [("light", 1400), ("dark", 390)]
SIZES = {"%": 1, "tokens/s": 1, "s": 1, "ms": 1e-3, "µs": 1e-6, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
EVIL = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>\"&amp;"
READ = """
return [...document.querySelectorAll('canvas')].map(canvas => {
  const chart = Chart.getChart(canvas), table = canvas.closest('figure').querySelector('table');
  const cells = row => [...row.cells].map(c => c.textContent);
  return {
    title: canvas.getAttribute('aria-label'), heading: canvas.closest('figure').querySelector('figcaption')?.textContent ?? '',
    section: canvas.closest('section').id, labels: chart.data.labels, axis: chart.options.scales.x.title?.text ?? '',
    datasets: chart.data.datasets.map(d => ({label: d.label, data: d.data})), wide: canvas.clientWidth, high: canvas.clientHeight,
    unit: canvas.closest('figure').querySelector('summary').textContent.replace(/^Table(, in )?/, ''),
    heads: cells(table.tHead.rows[0]), rows: [...table.tBodies[0].rows].map(cells)
  };
});"""


def check(what, right):
    if not right:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}")


def near(a, b):
    return a is None and b is None or a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def expect(what, drawn, expected):
    """Both are dictionaries of numbers."""
    wrong = [f"{key}: {drawn.get(key)}, expected {expected.get(key)}" for key in drawn.keys() | expected.keys()
             if not near(drawn.get(key), expected.get(key))]
    check(f"{what}: {len(expected)} numbers are those of the JSON {'; '.join(wrong[:3])}", expected and not wrong)


# What charts should show, from a command's JSON: {(run, name): number} in seconds, bytes, percent

def budget_of(run):
    asked = max(run["budget_bytes"], min(run.get("budget_asked_bytes", run["budget_bytes"]), run["all_expert_bytes"]))
    return 100 * asked / run["all_expert_bytes"]


def name_of(run):
    return f"{run['stack']} @ {budget_of(run):.3g}%"


def speed_of(run):
    return run["decode"]["tokens"] / run["decode"]["time_s"]


def clairvoyant_of(run):
    bounds = run["bounds"]
    host = run["decode"]["host_computed"] > 0 and "clairvoyant_with_host_tpot_s" in bounds
    return bounds["clairvoyant_with_host_tpot_s" if host else "clairvoyant_tpot_s"]


def outcomes(run):
    keys = {"hit": "hits", "late hit": "late_hits", "miss": "misses", "substituted": "substituted", "skipped": "skipped",
            "on the host": "host_computed"}
    return {name: 100 * run["decode"][key] / run["decode"]["requests"] for name, key in keys.items()}


def precision_bytes(run):
    tokens = run["prefill"]["tokens"] + run["decode"]["tokens"]
    return {"full precision" if name == "full" else name: count / tokens for name, count in run["bytes_by_precision"].items()}


def decode_time(run):
    t, tokens = run["time"]["decode"], run["decode"]["tokens"]
    deciding = t.get("decision_s", 0)
    return {"computing": (t["total_s"] - t["stall_s"] - t["host_wait_s"] - deciding) / tokens,
            "stalled on copies": t["stall_s"] / tokens, "waiting for the host": t["host_wait_s"] / tokens,
            "deciding": deciding / tokens, "link busy meanwhile": t["link_busy_s"] / tokens}


def whole_time(run):
    tokens = run["prefill"]["tokens"] + run["decode"]["tokens"]
    total = run["prefill"]["time_s"] + run["decode"]["time_s"]
    parts = {"stalled on copies": run["stall_s"], "waiting for the host": run["host_wait_s"], "deciding": run["decision_s"]}
    parts["computing"] = total - sum(parts.values())
    return {name: value / tokens for name, value in parts.items()}


def losses(run):
    bounds = run["bounds"]
    if not {"perfect_prediction", "belady_cache"} & bounds.keys():
        return {}
    other = lambda name: bounds.get(name, {}).get("tpot_s")
    return {"the clairvoyant bound": clairvoyant_of(run), "with both": other("prediction_and_cache"),
            "with perfect prediction": other("perfect_prediction"), "with Belady's cache": other("belady_cache"),
            "as it is": run["decode"]["tpot_s"]}


def each(runs, numbers):
    """Treats zero and absent alike, since neither can be seen."""
    return {(name_of(run), key): value for run in runs for key, value in numbers(run).items() if value}


class Browser:
    def __init__(self, looks, chromium, driver):
        self.looks = looks
        options = webdriver.ChromeOptions()
        if chromium:
            options.binary_location = chromium
        for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.chrome = webdriver.Chrome(options=options, service=Service(driver))
        self.command("Network.enable")
        self.command("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def command(self, name, **arguments):
        return self.chrome.execute_cdp_cmd(name, arguments)

    def run(self, script, *arguments):
        return self.chrome.execute_script(script, *arguments)

    def open(self, page, width, scheme, script=True):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.chrome.get(page.resolve().as_uri())

    def scroll_through(self):
        """Charts are made when they come near the window."""
        self.chrome.set_script_timeout(60)
        self.chrome.execute_async_script("""
            const done = arguments[0], tick = () => new Promise(f => requestAnimationFrame(() => setTimeout(f, 30)));
            (async () => {
              for (let y = 0; y < document.documentElement.scrollHeight; y += 600) { scrollTo(0, y); await tick(); }
              done();
            })();""")
        return self.run(READ)

    def point(self, chart, dataset, index):
        """Moves the mouse to a drawn number; returns the tooltip's lines."""
        x, y = self.run("""
            const canvas = document.querySelectorAll('canvas')[arguments[0]], chart = Chart.getChart(canvas);
            canvas.scrollIntoView({block: 'center'});
            const at = chart.getDatasetMeta(arguments[1]).data[arguments[2]].getCenterPoint(), box = canvas.getBoundingClientRect();
            return [box.left + at.x, box.top + at.y];""", chart, dataset, index)
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return self.chrome.execute_async_script("""
            const [at, done] = arguments, chart = Chart.getChart(document.querySelectorAll('canvas')[at]);
            requestAnimationFrame(() => setTimeout(() => done(chart.tooltip.opacity > 0 ?
                [...chart.tooltip.title, ...chart.tooltip.body.flatMap(b => b.lines)] : []), 20));""", chart)

    def complaints(self):
        found = [entry["message"] for entry in self.chrome.get_log("browser")]
        for entry in self.chrome.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent" and not message["params"]["request"]["url"].startswith("file:///"):
                found.append(message["params"]["request"]["url"])
        return found


def value_of(point):
    """The number behind a drawn point."""
    if not isinstance(point, dict):
        return point
    return point.get("share", point["x"][1] - point["x"][0] if isinstance(point["x"], list) else point["y"])


def check_hover(browser, charts, where):
    pointed = 0
    for at, chart in enumerate(charts):
        points = [(d, i) for d, s in enumerate(chart["datasets"]) for i in range(len(s["data"])) if value_of(s["data"][i])]
        number = lambda p: chart["datasets"][p[0]]["data"][p[1]]
        timeline = chart["section"] == "timeline"
        if timeline:  # points at what is in its middle, once that is wide enough
            end = max(number(p)["x"][1] for p in points)
            dataset, index = min(points, key=lambda p: abs(sum(number(p)["x"]) - end))
            for _ in range(6):
                browser.run("document.querySelector('#timeline button').click()")
        else:
            dataset, index = max(points, key=lambda p: value_of(number(p)))
        value = value_of(chart["datasets"][dataset]["data"][index])
        lines = browser.point(at, dataset, index)
        if timeline:
            browser.run("document.querySelector('#timeline button:last-of-type').click()")
        shown = [float(n.replace(",", "")) for line in lines for n in re.findall(r"[\d,]*\d(?:\.\d+)?(?:e\+\d+)?", line)]
        if not any(math.isclose(n, value, rel_tol=0.006) for n in shown):
            raise SystemExit(f"FAILED: {where}: pointing at {value} of {chart['title']} shows {lines}")
        pointed += 1
    check(f"{where}: pointing shows the value in {pointed} charts", pointed == len(charts) > 0)


def check_page(browser, page, where, expected_charts):
    """In both themes and at both widths, if need be at one in each; returns what is drawn."""
    seen = None
    grounds = set()
    for scheme, width in browser.looks:
        browser.open(page, width, scheme)
        charts = browser.scroll_through()
        at = f"{where}, {scheme}, {width} px"
        check(f"{at}: nothing is wider than the window",
              browser.run("return document.documentElement.scrollWidth <= innerWidth"))
        check(f"{at}: every chart is drawn inside of its card", all(
            0 < c["wide"] <= width and c["high"] > 60 for c in charts))
        check(f"{at}: canvases are not empty", browser.run("""
            return [...document.querySelectorAll('canvas')].every(c => new Set(new Uint32Array(
                c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size > 20)"""))
        grounds.add((scheme, browser.run("return getComputedStyle(document.body).backgroundColor + Chart.defaults.color")))
        numbers = [{k: v for k, v in c.items() if k not in ("wide", "high")} for c in charts]
        check(f"{at}: it shows the same numbers", seen is None or seen == numbers)
        seen = numbers
        check_hover(browser, charts, at)
        complaints = browser.complaints()
        check(f"{at}: no message in the console, no request {complaints or ''}", not complaints)
    check(f"{where}: light and dark differ", len(grounds) == 2 and len({g for _, g in grounds}) == 2)
    check(f"{where}: has {len(seen)} charts", {c["title"].split(":")[0] for c in seen} == expected_charts)
    for c in seen:
        if len(c["rows"]) == 0 or any(len(row) != len(c["heads"]) for row in c["rows"]):
            raise SystemExit(f"FAILED: {where}: no table under {c['title']}")
    return seen


def full_name(chart, row):
    """The run of a row: panels have its budget in their heading, charts with one budget on their axis."""
    if " @ " in row:
        return row
    budget = re.search(r"budget ([\d.]+%)", chart["heading"] + " " + chart["axis"])
    return f"{row} @ {budget.group(1)}" if budget else row


def row_numbers(charts, title, only_budget):
    """Of charts with a row for each run."""
    out = {}
    for c in charts:
        if not c["title"].startswith(title + ":"):
            continue
        for d in c["datasets"]:
            for row, value in zip(c["labels"], d["data"]):
                name = full_name(c, row)
                name = name if " @ " in name else f"{name} @ {only_budget}"
                if value:
                    out[name, d["label"]] = value * SIZES[c["unit"]]
    return out


def check_rows(charts, runs, where, time=decode_time, with_losses=False):
    only = f"{budget_of(runs[0]):.3g}%"
    kinds = [("Outcomes", outcomes), ("Bytes by precision", precision_bytes),
             ("Time of decode" if time is decode_time else "Time of the whole run", time)]
    if with_losses:
        kinds.append(("Which policy loses the time", losses))
    for title, numbers in kinds:
        expect(f"{where}, {title}", row_numbers(charts, title, only), each(runs, numbers))
    drawn = {}
    for c in charts:
        if c["title"].startswith("Hit rate by layer:"):
            names = [row[0] for row in c["rows"]]
            for cell in c["datasets"][0]["data"]:
                name = full_name(c, names[int(cell["y"])])
                drawn[name if " @ " in name else f"{name} @ {only}", sum(cell["x"]) / 2] = cell["share"]
    hits = {(name_of(run), float(layer)): 100 * share for run in runs
            for layer, share in enumerate(run.get("hit_rate_by_layer", [])) if share is not None}
    if hits:
        expect(f"{where}, Hit rate by layer", {(n, float(round(l))): v for (n, l), v in drawn.items()}, hits)


def check_recall(charts, runs, where):
    first = {}  # each stack's smallest budget with which it predicted
    for run in sorted(runs, key=budget_of):
        if any(any(d["recall_by_layer"]) for d in run["prefetch"].get("by_distance", [])):
            first.setdefault(run["stack"], run)
    expected = {(name_of(run), d["distance"], layer): 100 * recall for run in first.values()
                for d in run["prefetch"]["by_distance"] for layer, recall in enumerate(d["recall_by_layer"])
                if recall is not None}
    drawn = {(c["heading"], int(d["label"].split()[0]), layer): value for c in charts if c["section"] == "recall"
             for d in c["datasets"] for layer, value in zip(c["labels"], d["data"]) if value is not None}
    expect(f"{where}, Prediction by layer", drawn, expected)


def check_lines(charts, runs, where):
    chart, = [c for c in charts if c["section"] == "speed"]
    expected, drawn = {}, {}
    for run in runs:
        speed, x = speed_of(run), budget_of(run)
        expected[run["stack"], round(x, 6)] = speed
        expected[run["stack"] + ", its clairvoyant bound", round(x, 6)] = speed * run["decode"]["tpot_s"] / clairvoyant_of(run)
    for d in chart["datasets"]:
        if d["label"] == "bound: all resident":
            resident = sorted(speed_of(r) * r["decode"]["tpot_s"] / r["bounds"]["all_resident_tpot_s"] for r in runs
                              if not any(r["bytes_by_precision"][p] for p in ("int2", "int4", "int8")))
            check(f"{where}: the level line is all resident", near(d["data"][0]["y"], resident[len(resident) // 2])
                  and d["data"][0]["y"] == d["data"][1]["y"])
            continue
        for point in d["data"]:
            drawn[d["label"], round(point["x"], 6)] = point["y"]
    expect(f"{where}, Speed against budget", drawn, expected)


def check_bars(charts, runs, where):
    drawn = {(name.split(" @ ")[0], key): value for (name, key), value in
             row_numbers(charts, "Tokens a second", "").items()}
    expected = {}
    names = {"all_resident_tpot_s": "all resident", "clairvoyant_tpot_s": "clairvoyant",
             "clairvoyant_with_host_tpot_s": "clairvoyant + host"}
    for run in runs:
        expected[run["stack"], "tokens/s in decode"] = speed_of(run)
        for key, name in names.items():
            if key in run["bounds"]:
                expected[run["stack"], "bound: " + name] = speed_of(run) * run["decode"]["tpot_s"] / run["bounds"][key]
    expect(f"{where}, Tokens a second", drawn, expected)


def check_timeline(browser, page, charts, events):
    chart, = [c for c in charts if c["section"] == "timeline"]
    lanes = ["device", "link", "host"]
    spans = sorted([lanes[e["tid"]], e["ts"], e["dur"]] for e in events if e["ph"] == "X" and e["tid"] < 3)
    drawn = sorted([b["y"], b["x"][0], b["x"][1] - b["x"][0]] for d in chart["datasets"] for b in d["data"])
    check(f"the timeline has all {len(spans)} spans where they were", len(spans) == len(drawn) > 100 and all(
        a[0] == b[0] and near(round(a[1], 6), round(b[1], 6)) and near(round(a[2], 6), round(b[2], 6))
        for a, b in zip(drawn, spans)))
    browser.open(page, 1400, "light")
    browser.scroll_through()
    extent = lambda: browser.run("""const {x} = Chart.getChart([...document.querySelectorAll('#timeline canvas')].pop()).scales;
                                    return [x.min, x.max]""")
    whole = extent()
    press = lambda name: browser.chrome.find_element(By.XPATH, f"//button[text()='{name}']").click()
    press("Zoom in")
    middle = extent()
    check("a button zooms in", near(middle[1] - middle[0], whole[1] / 2) and near(sum(middle), whole[1]))
    press("Right")
    check("a button moves", near(extent()[0] - middle[0], whole[1] / 8))
    plot = browser.chrome.find_elements(By.CSS_SELECTOR, "#timeline .plot")[-1]
    plot.send_keys("+")
    check("a key zooms in", near(extent()[1] - extent()[0], whole[1] / 4))
    browser.run("arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -240, ctrlKey: true, clientX: 700, cancelable: true}))", plot)
    check("the wheel zooms in", near(extent()[1] - extent()[0], whole[1] / 8))
    before = extent()
    webdriver.ActionChains(browser.chrome).move_to_element(plot).click_and_hold().move_by_offset(-50, 0).release().perform()
    check("dragging moves", extent()[0] > before[0])
    press("All")
    check("a button shows all", extent() == whole)


def check_behaviour(browser, page, runs):
    browser.open(page, 1400, "light")
    browser.scroll_through()
    column = lambda head: browser.run("""
        const table = document.querySelector('#runs table'), at = [...table.tHead.rows[0].cells].findIndex(c => c.textContent === arguments[0]);
        table.tHead.rows[0].cells[at].click();
        return [...table.tBodies[0].rows].map(r => r.cells[at].textContent);""", head)
    speeds = sorted((speed_of(r) for r in runs), reverse=True)
    shown = [float(text.replace(",", "")) for text in column("Tokens/s")]
    check("a click on a head sorts, and the cells are the JSON's numbers", len(shown) == len(speeds) and all(
        abs(a - b) <= 0.5 for a, b in zip(shown, speeds)))
    check("a second click turns it round", [float(t.replace(",", "")) for t in column("Tokens/s")] == shown[::-1])
    check("text is sorted as text", column("Stack") == sorted(r["stack"] for r in runs))
    visible = browser.run("""
        const chart = Chart.getChart(document.querySelector('#speed canvas')), [item] = chart.legend.legendItems;
        const box = chart.legend.legendHitBoxes[0], rect = chart.canvas.getBoundingClientRect();
        chart.canvas.scrollIntoView({block: 'center'});
        const r = chart.canvas.getBoundingClientRect();
        return [r.left + box.left + 5, r.top + box.top + 5, chart.getVisibleDatasetCount()];""")
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        browser.command("Input.dispatchMouseEvent", type=kind, x=visible[0], y=visible[1], button="left", clickCount=1)
    count = browser.chrome.execute_async_script("""
        const done = arguments[0];
        setTimeout(() => done(Chart.getChart(document.querySelector('#speed canvas')).getVisibleDatasetCount()), 100)""")
    check("a click on a name hides a series and its bounds", count == visible[2] - 2)
    paper = base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"])
    check("it prints", paper.startswith(b"%PDF") and len(paper) > 50_000)
    check("nothing of the paper's colours stays", not browser.run("return document.documentElement.classList.contains('paper')"))
    browser.open(page, 390, "dark", script=False)
    text = browser.chrome.page_source
    tables = browser.chrome.find_elements(By.CSS_SELECTOR, "#runs td")
    check("without JavaScript the tables are there, and it is said that charts are not",
          len(tables) > 10 and tables[0].is_displayed() and "Charts need JavaScript" in text
          and not browser.chrome.find_element(By.CSS_SELECTOR, ".plot").is_displayed())
    closed = browser.chrome.find_element(By.CSS_SELECTOR, "#speed details")
    browser.chrome.find_element(By.CSS_SELECTOR, "#speed summary").click()
    check("and those under charts open", closed.find_element(By.TAG_NAME, "td").is_displayed())
    browser.command("Emulation.setScriptExecutionDisabled", value=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ferry")
    parser.add_argument("--quick", action="store_true", help="two pages in half the looks")
    parser.add_argument("--chromium", metavar="FILE", help="the browser (default: selenium finds it)")
    parser.add_argument("--driver", metavar="FILE", help="its chromedriver (default: selenium finds it)")
    parser.add_argument("--picture", help="of the top of the sweep's page, light, 1180 pixels wide")
    a = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    work = pathlib.Path(folder.name)
    ferry = str(pathlib.Path(a.ferry).resolve())
    text = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_bytes()[:3000 if a.quick else 12000]
    (work / "story.txt").write_bytes(text)

    def call(*arguments):
        done = subprocess.run([ferry, *arguments], cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"FAILED: ferry {' '.join(arguments)}: {done.stderr}")

    def read(name):
        made = json.loads((work / name).read_text())
        return made if isinstance(made, list) else [made]

    def report(name, *arguments):
        call("report", *arguments, "--out", name)
        once = (work / name).read_bytes()
        call("report", *arguments, "--out", name)
        check(f"{name}: the same numbers make the same page, of {len(once) // 1024} KiB", once == (work / name).read_bytes())
        return work / name

    if not a.quick:
        call("run", "--model", "tiny-mixtral", "--stack", "cross-layer-lru", "--prompt", "To be", "--json", "run.json")
        call("compare", "--model", "tiny-qwen-moe", "--stacks", "lru,fate,hobbit,hybrimoe", "--prompt", "def main():", "--json", "compare.json")
    call("trace", "record", "--model", "tiny-qwen-moe", "--text", "story.txt", "--out", "story.safetensors")
    simulated = ("--as", "qwen1.5-moe-a2.7b", "--bounds", "all")
    call("simulate", "--trace", "story.safetensors", "--stacks", "lru,fate,hobbit", *simulated, "--json", "simulate.json")
    call("simulate", "--trace", "story.safetensors", "--stacks", "cross-layer-lru", "--tokens", "6", "--timeline", "timeline.json")
    call("sweep", "--traces", "story.safetensors", "--machines", "rtx3090-pcie3", "--stacks",
         "lru,cross-layer-lru,fate,fate+cache,hobbit,hybrimoe", "--budgets", "12.5%,25%,50%,75%", *simulated, "--out", "sweep.jsonl")
    sweep = [json.loads(line) for line in (work / "sweep.jsonl").read_text().splitlines()]
    check("every cell of the sweep was run", len(sweep) == 24 and not any("refused" in run for run in sweep))

    browser = Browser(QUICK_LOOKS if a.quick else LOOKS, a.chromium, a.driver)
    try:
        rows = {"Outcomes", "Bytes by precision", "Tokens a second"}
        if not a.quick:
            for name in ("run", "compare"):
                page, runs = report(f"{name}.html", f"{name}.json"), read(f"{name}.json")
                drawn = check_page(browser, page, name, rows | {"Time of the whole run", "Recall by layer"})
                check_rows(drawn, runs, name, whole_time)
                check_bars(drawn, runs, name)
                check_recall(drawn, runs, name)

        rows |= {"Time of decode", "Hit rate by layer", "Which policy loses the time", "Recall by layer"}
        several, events = read("simulate.json"), read("timeline.json")[0]
        if not a.quick:
            page = report("simulate.html", "simulate.json", "--timeline", "timeline.json")
            drawn = check_page(browser, page, "simulate", rows | {"Timeline"})
            check_rows(drawn, several, "simulate", with_losses=True)
            check_bars(drawn, several, "simulate")
            check_recall(drawn, several, "simulate")
            check_timeline(browser, page, drawn, events["traceEvents"] if "traceEvents" in events else read("timeline.json"))

        page = report("sweep.html", "sweep.jsonl")
        drawn = check_page(browser, page, "sweep", rows - {"Tokens a second"} | {"Speed against budget"})
        check_rows(drawn, sweep, "sweep", with_losses=True)
        check_lines(drawn, sweep, "sweep")
        check_recall(drawn, sweep, "sweep")
        check_behaviour(browser, page, sweep)

        for run in several:
            run["hit_rate_by_layer"][0] = None  # as of a layer without experts
            for field in ("stack", "model", "machine", "trace", "device"):
                run[field] = EVIL + run[field]
            run["parameters"] = {EVIL: EVIL}
        several.append({"stack": EVIL, "refused": EVIL})
        (work / "evil.json").write_text(json.dumps(several))
        for event in events["traceEvents"] if "traceEvents" in events else events:
            event["name"] = EVIL + event["name"]
        (work / "evil timeline.json").write_text(json.dumps(events))
        page = report("evil.html", "evil.json", "--timeline", "evil timeline.json", "--title", EVIL)
        drawn = check_page(browser, page, "hostile names", rows | {"Timeline"})
        heat, = [c for c in drawn if c["section"] == "layers"]
        check("layers keep their numbers where the first has no experts",
              {round(sum(cell["x"]) / 2) for cell in heat["datasets"][0]["data"]} == set(range(1, 12)))
        check("hostile names do nothing and are shown as they are", browser.run("return window.broken") is None
              and browser.chrome.title == EVIL and browser.chrome.find_element(By.TAG_NAME, "h1").text == EVIL
              and any(EVIL[:60] in label for c in drawn for label in map(str, c["labels"])) and not browser.chrome.find_elements(By.TAG_NAME, "img"))

        if a.picture:
            browser.open(work / "sweep.html", 1180, "light")
            browser.scroll_through()
            browser.run("scrollTo(0, 0)")
            picture = browser.command("Page.captureScreenshot", captureBeyondViewport=True,
                                      clip={"x": 0, "y": 0, "width": 1180, "height": 1250, "scale": 1})
            pathlib.Path(a.picture).write_bytes(base64.b64decode(picture["data"]))
    finally:
        browser.chrome.quit()


if __name__ == "__main__":
    main()
