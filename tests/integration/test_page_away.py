#!/usr/bin/python3
"""The page in a browser where an answer does not come, a connection is gone, a model too, or nobody looks.

    test_page_away.py BIN_DIR [NAME ...]
"""
import datetime
import re
import sys

from ampd_testing import eventually, run
from page_testing import page_server
from test_page_browser import MISSING, browser, shows, text_of, url


# ---- the clock ----

WRONG_CLOCK = "const now = Date.now; Date.now = () => now() + 5 * 3600 * 1000;"


def test_since_when_a_server_is_away_is_told_by_its_own_clock(context):
    server = page_server(context)
    with browser() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WRONG_CLOCK})
        driver.get(url(server))
        shows(driver, "live", "#link")
        server.stop()
        since = eventually(lambda: re.search(r"since (\d\d:\d\d:\d\d) UTC", text_of(driver, "#link")), "since when")
        now = datetime.datetime.now(datetime.timezone.utc)
        told = datetime.datetime.strptime(since[1], "%H:%M:%S").replace(tzinfo=now.tzinfo)
        assert (now - told).seconds < 600, (since[1], now)
        driver.get_log("browser")  # of requests that nobody answered


if __name__ == "__main__":
    if MISSING is not None:
        print(f"SKIPPED: test_page_away: {MISSING}; scripts/packages.sh test installs them")
        sys.exit(77)
    run(globals())
