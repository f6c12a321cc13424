#!/usr/bin/env python3
"""Tries the page of `ferry serve` in headless Chromium. Not in CI: it needs a browser.

    apt-get install chromium chromium-driver && pip install selenium
    python3 tests/server/try_page.py build/reference_engine/ferry [--picture page.png]

It talks to the model through the page, stops an answer, begins anew, reads the drawn numbers back and compares them with
/stats, looks at the page as a phone would, and fails if the browser's console has an error.
"""
import argparse
import json
import re
import signal
import subprocess
import time
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


def check(what, right):
    if not right:
        raise SystemExit(f"FAILED: {what}")
    print(f"ok: {what}")


def start(ferry, *arguments):
    server = subprocess.Popen([ferry, "serve", "--model", "tiny-mixtral", "--port", "0", *arguments],
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.search(r"http://[\d.]+:\d+", line)
        if found:
            return server, found.group(0)
    raise SystemExit("the server did not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ferry")
    parser.add_argument("--picture")
    a = parser.parse_args()
    server, url = start(a.ferry, "--api-key", "sesame")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1200,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options)
    try:
        wait = WebDriverWait(browser, 30)
        browser.get(url)
        find = lambda name: browser.find_element(By.ID, name)
        turns = lambda kind: [e.text for e in browser.find_elements(By.CSS_SELECTOR, f".turn.{kind}")]
        idle = lambda *_: find("go").text == "Send"

        find("text").send_keys("Hello", Keys.ENTER)
        wait.until(lambda *_: turns("failed"))
        check("without the key it says why", "API key" in turns("failed")[0])
        find("new").click()
        find("key").send_keys("sesame")
        find("tokens").clear()
        find("tokens").send_keys("40")
        find("text").send_keys("Once upon a time", Keys.ENTER)
        wait.until(lambda *_: turns("assistant") and turns("assistant")[-1] and idle())
        check("it answers", len(turns("assistant")[-1]) > 10 and turns("user") == ["Once upon a time"])
        find("tokens").clear()
        find("tokens").send_keys("900")
        find("text").send_keys("And then?", Keys.ENTER)
        wait.until(lambda *_: len(turns("assistant")) == 2 and turns("assistant")[-1])
        find("go").click()
        wait.until(idle)
        check("an answer can be stopped", not turns("failed") or "failed" not in turns("failed")[-1])

        def settled(*_):
            request = urllib.request.Request(url + "/stats", headers={"Authorization": "Bearer sesame"})
            stats = json.load(urllib.request.urlopen(request))
            shown = find("experts").text
            return not stats["active"] and f"hits {stats['decode']['hits']} " in shown and stats
        stats = wait.until(settled)
        for name, key in (("misses", "misses"), ("on the host", "host_computed"), ("late hits", "late_hits")):
            check(f"{name} are those of /stats", f"{name} {stats['decode'][key]} (" in find("experts").text)
        widths = [float(re.search(r"width: ([\d.]+)%", e.get_attribute("style")).group(1))
                  for e in find("bar").find_elements(By.TAG_NAME, "i")]
        check("the bar's parts are the whole", abs(sum(widths) - 100) < 0.1)
        time.sleep(2)
        check("the link's curve is drawn", "polyline" in find("link").get_attribute("innerHTML"))
        if a.picture:
            browser.save_screenshot(a.picture)
        for width, height in ((400, 800), (1600, 900)):
            browser.set_window_size(width, height)
            inside = browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
            check(f"nothing is cut off at {width} pixels", inside)
        find("new").click()
        check("a new conversation is empty", not browser.find_elements(By.CSS_SELECTOR, ".turn"))
        check("nothing was fetched from elsewhere", all(
            e.startswith(url) for e in browser.execute_script(
                "return performance.getEntriesByType('resource').map(e => e.name)")))
        errors = [e["message"] for e in browser.get_log("browser")
                  if e["level"] == "SEVERE" and "401" not in e["message"] and "favicon" not in e["message"]]
        check(f"no errors in the console {errors or ''}", not errors)
    finally:
        browser.quit()
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


if __name__ == "__main__":
    main()
