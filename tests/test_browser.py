"""The pages in a real browser: nothing is loaded, nothing sticks out, and texts show their heat."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image
from test_viz import EVIL, page

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from grainline.report.case import CaseImage, SentenceScore, look
from grainline.report.page import Section, render_page

LONG = "W" * 200  # a word that no line can break


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
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("file:", "data:"))]


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


def phrased(sentences: int, text: str = "words") -> str:
    """A page with one image and a text of so many sentences, each with two phrases."""
    phrases = [SentenceScore(f"{text} a", 0.25), SentenceScore(text, 0.1)]
    said = [SentenceScore(f"{text} {i}.", 0.5, phrases=phrases) for i in range(sentences)]
    heat = np.linspace(-1, 1, 3 * sentences)[:, None, None] * np.ones((40, 40))
    one = CaseImage(Image.new("RGB", (40, 40), "red"), "p", said, heat, left_out="Left out: nothing.")
    return render_page("t", "", [Section("s", Markup('<div class="card">{}</div>').format(look(one, "a")))])


def top(browser: Any) -> int:
    """Which map lies on top of the image, from 0; -1: the image itself."""
    return int(
        browser.execute_script("""
        const level = one => getComputedStyle(one).opacity === "1" ? +getComputedStyle(one).zIndex : -1;
        const levels = [...document.querySelectorAll(".over")].map(level);
        return Math.max(...levels) < 0 ? -1 : levels.lastIndexOf(Math.max(...levels));""")
    )


def point(browser: Any, what: Any) -> None:
    ActionChains(browser).move_to_element(what).perform()


@pytest.mark.parametrize("width", [360, 1100])
def test_a_phrase_shows_its_heat_over_that_of_its_sentence_by_mouse_and_by_keyboard(
    browser: Any, tmp_path: Path, width: int
) -> None:
    show(browser, tmp_path / "page.html", phrased(2), width, "light")
    image, *maps = browser.find_elements(By.CSS_SELECTOR, ".look > img, .look .over")
    assert all(one.rect == image.rect for one in maps)
    radios = browser.find_elements(By.TAG_NAME, "input")
    labels = browser.find_elements(By.TAG_NAME, "label")
    assert top(browser) == -1
    for number in (1, 2, 3):  # a sentence and its phrases
        labels[number].click()
        assert top(browser) == number - 1
    point(browser, browser.find_element(By.TAG_NAME, "h1"))
    assert top(browser) == 2, "it stays chosen"
    radios[3].send_keys(Keys.ARROW_DOWN)
    assert top(browser) == 3, "the next sentence comes after the phrases"
    radios[4].send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element == radios[5]
    assert radios[5].value_of_css_property("outline-style") == "solid", "focus is visible"
    assert top(browser) == 4
    if width > 500:
        point(browser, labels[2])
        assert top(browser) == 1, "what is pointed at lies above what has the focus"
        point(browser, labels[1])
        assert top(browser) == 0
    browser.execute_script("document.activeElement.blur()")
    point(browser, browser.find_element(By.TAG_NAME, "h1"))
    assert top(browser) == 4


@pytest.mark.parametrize("width", [360, 1100])
def test_a_long_list_scrolls_beside_its_image_and_all_of_it_is_on_paper(
    browser: Any, tmp_path: Path, width: int
) -> None:
    show(browser, tmp_path / "page.html", phrased(12, LONG[:60]), width, "dark")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    listed = browser.find_element(By.CSS_SELECTOR, "fieldset ol")
    assert listed.rect["height"] < 460
    last = browser.find_elements(By.TAG_NAME, "label")[-1]
    last.click()
    assert top(browser) == 35
    image, *maps = browser.find_elements(By.CSS_SELECTOR, ".look > img, .look .over")
    assert maps[35].rect == image.rect, "the map stays where the image is"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script("const o = arguments[0]; return o.scrollHeight <= o.clientHeight", listed)
    assert all(float(one.value_of_css_property("opacity")) == 1 for one in maps)
    assert len({(one.rect["x"], one.rect["y"]) for one in maps}) == 36, "no map hides another one"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
