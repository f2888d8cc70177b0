"""The pages in a real browser: nothing is loaded, nothing sticks out, and sentences show their heat."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_viz import EVIL, page

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs chromium and chromedriver on the path"
)
LONG = "W" * 200  # a word that no line can break


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(browser: Any, path: Path, text: str, width: int, theme: str) -> None:
    """Load the page about a text in a window of that width."""
    path.write_text(text, encoding="utf-8")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
    wanted = [{"name": name, "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    browser.get(path.as_uri())


def requests(browser: Any) -> list[str]:
    """What the browser asked for since the last call, but for files and data URLs."""
    told = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_loaded_or_complained_of_and_nothing_sticks_out(
    browser: Any, tmp_path: Path, width: int, theme: str
) -> None:
    for text in (EVIL, LONG):
        show(browser, tmp_path / "page.html", page(text), width, theme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.get_log("browser") == []
        assert requests(browser) == []
        assert browser.execute_script("return document.images.length") > 10
        assert browser.execute_script("return [...document.images].every(one => one.naturalWidth > 0)")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[theme]


def seen(browser: Any) -> list[bool]:
    """Which heat maps of the first picture are to be seen."""
    maps = browser.find_element(By.CLASS_NAME, "look").find_elements(By.CLASS_NAME, "over")
    return [float(one.value_of_css_property("opacity")) == 1 for one in maps]


@pytest.mark.parametrize("width", [360, 1100])
def test_a_sentence_shows_its_heat_over_the_picture_by_mouse_and_by_keyboard(
    browser: Any, tmp_path: Path, width: int
) -> None:
    show(browser, tmp_path / "page.html", page(), width, "light")
    look = browser.find_element(By.CLASS_NAME, "look")
    assert seen(browser) == [False, False]
    picture, *_ = look.find_elements(By.TAG_NAME, "img")
    assert all(one.rect == picture.rect for one in look.find_elements(By.CLASS_NAME, "over"))
    first, second = look.find_elements(By.TAG_NAME, "label")[1:]
    first.click()
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert seen(browser) == [True, False]
    browser.execute_script("document.activeElement.blur()")
    assert seen(browser) == [True, False], "it stays chosen"
    radios = look.find_elements(By.TAG_NAME, "input")
    radios[1].send_keys(Keys.ARROW_DOWN)
    assert seen(browser) == [False, True]
    assert browser.switch_to.active_element == radios[2]
    outline = radios[2].value_of_css_property("outline-style")
    assert outline == "solid", "focus is visible"
    radios[2].send_keys(Keys.ARROW_DOWN)
    assert seen(browser) == [False, False], "back to the picture alone"
    if width > 500:
        ActionChains(browser).move_to_element(second).perform()
        assert seen(browser) == [False, True]
