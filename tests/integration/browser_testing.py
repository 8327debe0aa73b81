"""A browser for tests of the page: Chromium without a screen, one in a process, and a tab for each test."""
import atexit
import contextlib
import functools
import re
import shutil
import tempfile

from ampd_testing import DIE_WITH_PARENT

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    MISSING = None if shutil.which("chromium") and shutil.which("chromedriver") else "no chromium and chromium-driver"
except ImportError:
    MISSING, Service = "no python3-selenium", object


class EndsWithUs(Service):
    """chromedriver, which ends with this process however that ends; Chromium ends with the pipe between them."""

    def __init__(self):
        super().__init__(DIE_WITH_PARENT[0])

    def command_line_args(self):
        return [*DIE_WITH_PARENT[1:], shutil.which("chromedriver"), *super().command_line_args()]


class Chromium:
    """The one of a file of tests: each start takes a core some seconds."""

    def __init__(self):
        options = Options()
        options.binary_location = shutil.which("chromium")
        self.profile = tempfile.TemporaryDirectory(prefix="ampd-browser-", ignore_cleanup_errors=True)
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--hide-scrollbars", "--lang=en", "--remote-debugging-pipe",
                         f"--user-data-dir={self.profile.name}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=EndsWithUs(), options=options)
        self.driver.set_page_load_timeout(60)
        self.home = self.driver.current_window_handle
        atexit.register(self.end)

    def end(self):
        atexit.unregister(self.end)
        self.driver.quit()
        self.profile.cleanup()

    def close_tabs(self):
        """All but the first, empty one, without which Chromium would end."""
        for tab in self.driver.window_handles:
            if tab != self.home:
                self.driver.switch_to.window(tab)
                self.driver.close()
        self.driver.switch_to.window(self.home)


@functools.cache
def chromium():
    return Chromium()


@contextlib.contextmanager
def browser(width=1280, height=900, dark=False, scale=1):
    """A tab of its own, whose console is looked at in the end: an error there fails the test."""
    here = chromium()
    driver = here.driver
    try:
        driver.switch_to.new_window("tab")
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}]})
        driver.get_log("browser")  # of the tab before
        yield driver
        said = [line["message"] for line in driver.get_log("browser") if line["level"] == "SEVERE"]
        # That a token or a role is asked for, or no model or place is there, is an answer; a browser wants an icon.
        answers = re.compile(r"/api/.* (401|403|404|503) |/favicon")
        said = [line for line in said if not answers.search(line)]
        assert not said, said
        here.close_tabs()
    except BaseException:  # the next test begins with another one
        chromium.cache_clear()
        with contextlib.suppress(Exception):  # what has failed is told
            here.end()
        raise
