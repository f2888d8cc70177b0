"""The page of `grainline serve` in a real browser: one server and one headless Chromium for all tests."""

import hashlib
import io
import json
import shutil
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import torch
from indexes import TEXTS, photos, texts, tiny_model
from PIL import Image
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from servers import PATIENCE, running
from starlette.exceptions import HTTPException

from grainline.data.captions import sentences
from grainline.index.search import Index, QueryHits
from grainline.index.sync import build, remove
from grainline.nn.upsample import FLOOR, FULL, on_grid, place
from grainline.report.heatmap import overlay
from grainline.web.engine import Batcher, Engine

QUERY = "A red dog runs. The sand is green. A blue cat sleeps."
EVIL = "<img src=x onerror=alert(1)>"
LONG = "x" * 90
MODEL = tiny_model()


class Site(NamedTuple):
    """A browser, and the server that it looks at."""

    driver: Any
    url: str
    client: httpx.Client
    engine: Engine
    folder: Path

    def open(self, place: str = "") -> None:
        """The page, loaded anew."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{place}")
        self.wait(lambda: "images" in self.text("#about"))

    def all(self, selector: str) -> list[WebElement]:
        elements: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return elements

    def one(self, selector: str) -> WebElement:
        return self.all(selector)[0]

    def text(self, selector: str) -> str:
        return str(self.one(selector).text)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait(self, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while not (value := true()):
            assert time.monotonic() < end, self.text("body")
            time.sleep(0.02)
        return value

    def search(self, query: str) -> None:
        """Type a text, search, and wait for the answer."""
        self.one("#text").clear()
        self.one("#text").send_keys(query, Keys.CONTROL, Keys.ENTER)
        self.wait(lambda: self.settled() and self.all(".hit"))

    def settled(self) -> bool:
        busy = self.one("#hits").get_attribute("aria-busy")
        return busy is None and "Searching" not in self.text("#status")

    def paths(self) -> list[str]:
        return list(self.script("return [...document.querySelectorAll('.hit h2')].map((h) => h.innerText)"))


@pytest.fixture(scope="module")
def shared(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with twelve images: ten small ones, a flat grey one, and one whose name is HTML."""
    folder = tmp_path_factory.mktemp("made")
    root = photos(folder / "photos", 10)
    Image.new("RGB", (300, 200), (128, 128, 128)).save(root / "flat.png")
    Image.new("RGB", (30, 40), (10, 90, 20)).save(root / f"{EVIL}{LONG}.png")
    build(root, folder / "index", model=MODEL, calibration_texts=texts(folder))
    engine = Engine(folder / "index", MODEL)
    with running(engine) as client:
        yield Site(browser, str(client.base_url).rstrip("/"), client, engine, folder)


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The page, freshly opened. Afterwards: nothing but this server was asked, and nothing complained."""
    for log in ("browser", "performance"):
        shared.driver.get_log(log)
    shared.open()
    yield shared
    complaints = [line["message"] for line in shared.driver.get_log("browser")]
    assert not [line for line in complaints if "status of 503" not in line], complaints
    events = [json.loads(line["message"])["message"] for line in shared.driver.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert len(sent) > 3
    assert not [url for url in sent if not url.startswith((shared.url, f"blob:{shared.url}", "about:"))]


def canvas(site: Site, card: WebElement) -> Image.Image | None:
    """What lies over an image, or None where nothing does."""
    code = "const c = arguments[0].querySelector('canvas'); return c.hidden ? null : c.toDataURL();"
    url = site.script(code, card)
    return None if url is None else Image.open(io.BytesIO(b64decode(url.partition(",")[2])))


def card_of(site: Site, path: str) -> WebElement:
    return site.all(".hit")[site.paths().index(path)]


def focus(site: Site, button: WebElement) -> None:
    site.script("arguments[0].focus()", button)


@contextmanager
def phone(site: Site) -> Iterator[None]:
    """A screen 360 pixels wide."""
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    site.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    site.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# Searching by text


def test_a_description_finds_images_with_every_sentence_judged(site: Site) -> None:
    site.one("#text").send_keys(QUERY)
    site.wait(lambda: site.text("#count") == "3 sentences")
    site.one("#text").send_keys(Keys.CONTROL, Keys.ENTER)
    site.wait(lambda: site.all(".hit"))
    answer = site.client.post("/api/search", json={"text": QUERY}).json()
    assert site.paths() == [hit["path"] for hit in answer["hits"]]
    assert len(site.paths()) == 12
    assert site.text("#about") == "index: 12 images, maxsim"
    for card, hit in zip(site.all(".hit"), answer["hits"], strict=True):
        assert f"score {hit['score']:.3f}" in card.text
        words = {"sure": "✓ sure match", "in part": "◐ match in part", "none": "~ no sure match"}
        assert words[hit["match"]] in card.text
        lines = card.find_elements(By.CSS_SELECTOR, ".sentences li")
        for line, sentence in zip(lines, hit["sentences"], strict=True):
            sign = {"shows": "✓", "cannot tell": "?", "does not": "✗"}[sentence["verdict"]]
            assert line.text.startswith(f"{sign}\n{sentence['text']}\n")
            assert f"\nscore {sentence['score']:.2f}" in line.text
    image = site.one(".hit img")
    site.wait(lambda: site.script("return arguments[0].naturalWidth", image))
    assert site.driver.current_url == f"{site.url}/#q={quote(QUERY)}"


def test_it_says_in_words_whether_anything_matches(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Index.search
    for matches, said in (
        ([], "No sure match. The nearest images are:"),
        (["sure", "sure"], "12 images, best first; 2 of them sure."),
        (["sure", "in part", "in part"], "12 images, best first; 1 of them sure, 2 in part."),
    ):

        def judged(*query: Any, matches: Sequence[str] = matches) -> list[QueryHits]:
            out = []
            for answer in search(*query):
                pairs = zip_longest(answer.hits, matches, fillvalue="none")
                out.append(answer._replace(hits=tuple(hit._replace(match=match) for hit, match in pairs)))
            return out

        monkeypatch.setattr(Index, "search", judged)
        site.open()
        site.search(QUERY)
        assert site.text("#status") == said
        marks = [mark.text for mark in site.all(".match")]
        assert marks.count("✓ sure match") == matches.count("sure")
        assert marks.count("◐ match in part") == matches.count("in part")


def test_the_address_holds_the_query_and_the_back_button_goes_back(site: Site) -> None:
    site.search(TEXTS[0])
    first = site.paths()
    site.search(f"{TEXTS[1]} 100% & #1?")
    site.wait(lambda: site.paths() != first)
    site.driver.back()
    site.wait(lambda: site.paths() == first and site.settled())
    assert site.one("#text").get_property("value") == TEXTS[0]
    site.driver.forward()
    site.wait(lambda: site.paths() != first and site.settled())
    assert site.one("#text").get_property("value") == f"{TEXTS[1]} 100% & #1?"
    site.driver.back()
    site.driver.back()
    site.wait(lambda: not site.all(".hit"))
    assert site.one("#text").get_property("value") == ""
    site.open(f"#q={quote(TEXTS[0])}")
    site.wait(lambda: site.paths() == first)


# Heat


def test_focus_lays_the_heat_of_a_sentence_over_the_image_as_python_draws_it(site: Site) -> None:
    site.search(QUERY)
    card = card_of(site, "flat.png")
    assert canvas(site, card) is None
    index: Index = site.engine.now.image_index
    parts = [sentence.text for sentence in sentences(QUERY)]
    exact = index.heat([(index.reader.numbers["flat.png"], parts)], (2, 2))[0].flatten(1)
    coloured = 0
    for button, heat in zip(card.find_elements(By.CSS_SELECTOR, ".sentences button"), exact, strict=True):
        focus(site, button)
        drawn = site.wait(lambda: None if "on" not in button.get_attribute("class") else canvas(site, card))  # noqa: B023
        said = place(heat.view(2, 2).numpy(), FLOOR)  # in the words of Python; those of the page are its own
        words = {"no": "No contrast", "less": "Less than other texts", "strongest": "Strongest"}
        site.wait(lambda: words[said.split()[0]] in card.text)  # noqa: B023
        wide, tall = drawn.size
        pixels = np.asarray(drawn, float)
        zoom = min(wide / 300, tall / 200)
        side = round(200 * zoom)  # the middle square of the image, which the model sees
        square = Image.new("RGB", (side, side), (128, 128, 128))
        large = on_grid(heat[None], (2, 2), (side, side))[0].numpy()
        wanted = np.asarray(overlay(square, large, FULL, FLOOR), float)
        top, left = round((tall - side) / 2), round((wide - side) / 2)
        inside = pixels[top : top + side, left : left + side, :3]
        assert np.abs(inside - wanted)[3:-3, 3:-3].max() <= 6
        beside = pixels[tall // 2, round((wide - 300 * zoom) / 2) + 5]
        assert np.ptp(beside[:3]) <= 2, "no heat where the model does not look"
        coloured += np.ptp(wanted, axis=-1).max() > 30
    assert coloured, "some sentence has contrast in this image"
    site.one("#text").click()
    assert canvas(site, card) is None


def test_hover_shows_heat_and_gives_it_back_to_the_focus(site: Site) -> None:
    site.search(QUERY)
    first, second = site.all(".hit")[:2]
    buttons = second.find_elements(By.CSS_SELECTOR, ".sentences button")
    site.script("arguments[0].scrollIntoView({block: 'center'})", buttons[1])
    ActionChains(site.driver).move_to_element(buttons[1]).perform()
    site.wait(lambda: canvas(site, second) is not None)
    assert canvas(site, first) is None
    focus(site, buttons[0])
    ActionChains(site.driver).move_to_element(site.one("h1")).perform()
    site.wait(lambda: "on" in buttons[0].get_attribute("class"))
    assert canvas(site, second) is not None
    focus(site, site.one("#text"))
    site.wait(lambda: canvas(site, second) is None)


def test_everything_can_be_reached_by_keyboard_alone(site: Site) -> None:
    site.script("document.activeElement.blur()")
    places = []
    for _ in range(4):
        ActionChains(site.driver).send_keys(Keys.TAB).perform()
        places.append(site.script("return document.activeElement.id || document.activeElement.textContent"))
    assert places == ["skip", "text", "Search", "file"]
    focus(site, site.one("#text"))
    ActionChains(site.driver).send_keys(QUERY, Keys.TAB, Keys.ENTER).perform()
    site.wait(lambda: site.all(".hit"))
    ActionChains(site.driver).send_keys(Keys.TAB, Keys.TAB, Keys.TAB).perform()
    card = site.all(".hit")[0]
    site.wait(lambda: canvas(site, card) is not None)
    before = canvas(site, card)
    assert before is not None
    ActionChains(site.driver).send_keys(Keys.TAB).perform()
    site.wait(lambda: (now := canvas(site, card)) and now.tobytes() != before.tobytes())
    assert site.script("return document.activeElement.innerText").startswith(("✓", "✗", "?"))


def test_what_a_screen_reader_needs_is_there(site: Site) -> None:
    site.search(QUERY)
    assert site.script("return document.documentElement.lang") == "en"
    assert site.one("#status").get_attribute("role") == "status"
    assert site.one("#problem").get_attribute("role") == "alert"
    assert site.one("#text").accessible_name == "Describe the image you are looking for"
    assert "image" in site.one("#file").accessible_name.lower()
    assert all(image.get_attribute("alt") for image in site.all(".hit img"))
    button = site.one(".sentences button")
    assert "A red dog runs." in button.accessible_name
    assert any(said in button.accessible_name for said in ("shows it", "does not", "cannot tell"))
    where = site.one(f"#{button.get_attribute('aria-describedby')}")
    assert where.text == "Point at a sentence to see where it shows."


# Searching by image


def carry(site: Site, event: str, path: Path, kind: str) -> None:
    """An image dropped on the page, or pasted into it, as a browser does it."""
    site.script(
        """const [event, name, bytes, kind] = arguments, data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], name, {type: kind}));
        const options = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};
        if (event === "drop") document.body.dispatchEvent(new DragEvent("dragover", options));
        const made = event === "drop" ? new DragEvent(event, options) : new ClipboardEvent(event, options);
        document.body.dispatchEvent(made);
        """,
        event, path.name, list(path.read_bytes()), kind,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["choose", "drop", "paste"])
def test_a_image_finds_its_like(site: Site, way: str) -> None:
    photo = site.folder / "photos" / "05.png"
    site.search(QUERY)
    before = site.paths()
    if way == "choose":
        site.one("#file").send_keys(str(photo))
    else:
        carry(site, way, photo, "image/png")
    site.wait(lambda: site.settled() and "05.png" in site.text("#query"))
    site.wait(lambda: site.paths()[0] == "05.png")
    site.wait(lambda: site.script("return document.querySelector('#query img').naturalWidth") == 12)
    assert "score 1.000" in site.all(".hit")[0].text
    assert not site.one("#drop").is_displayed()
    assert not site.all(".hit .where")[0].is_displayed()
    site.driver.back()
    site.wait(lambda: site.paths() == before)
    assert not site.one("#query").is_displayed()
    site.driver.forward()
    site.wait(lambda: site.paths()[0] == "05.png")


def test_the_address_of_a_query_by_image_works_in_a_new_tab(site: Site) -> None:
    name = hashlib.sha256((site.folder / "photos" / "05.png").read_bytes()).hexdigest()[:24]
    answer = site.client.post("/api/search/image", files={"name": (None, name)}).json()
    paths = [hit["path"] for hit in answer["hits"]]
    assert answer["hits"][0]["name"] == name
    carry(site, "drop", site.folder / "photos" / "05.png", "image/png")
    site.wait(lambda: site.settled() and site.paths() == paths)
    assert site.driver.current_url == f"{site.url}/#image={name}"
    site.driver.refresh()
    site.wait(lambda: site.paths() == paths and site.settled())
    assert site.text("#query") == "Images like 05.png"
    site.wait(lambda: site.script("return document.querySelector('#query img').naturalWidth") == 12)


def test_a_hit_is_the_next_query_and_the_back_button_returns_to_it(site: Site) -> None:
    site.search(QUERY)
    before = site.paths()
    site.script("document.querySelectorAll('.hit .frame')[2].click()")
    site.wait(lambda: site.one("#detail").is_displayed())
    name = site.driver.current_url.rpartition("show=")[2]
    site.one(".like").click()
    site.wait(
        lambda: site.settled() and site.paths()[0] == before[2] and not site.one("#detail").is_displayed()
    )
    assert site.driver.current_url == f"{site.url}/#image={name}"
    assert site.text("#query") == f"Images like {before[2]}"
    assert "score 1.000" in site.all(".hit")[0].text
    site.driver.back()
    site.wait(lambda: site.paths() == before and site.one("#detail").is_displayed())
    assert before[2] in site.text("#large")
    site.driver.back()
    site.wait(lambda: not site.one("#detail").is_displayed() and site.paths() == before)
    site.driver.forward()
    site.driver.forward()
    site.wait(lambda: site.settled() and site.paths()[0] == before[2])


def test_a_query_that_cannot_be_is_named_before_it_is_sent(site: Site, tmp_path: Path) -> None:
    site.one("#ask .main").click()
    assert "Write a description first" in site.text("#problem")
    assert site.one("#problem").location["y"] < site.one("#samples").location["y"], "not below the images"
    assert not site.one("#problem button").is_displayed()
    (tmp_path / "notes.txt").write_text("no image")
    carry(site, "drop", tmp_path / "notes.txt", "text/plain")
    assert site.text("#problem") == "notes.txt is no image."
    site.open("#image=1700000000000")
    site.wait(lambda: "choose it again" in site.text("#problem"))
    site.search(QUERY)
    assert not site.one("#problem").is_displayed()


# Text from elsewhere


def test_names_and_texts_that_are_html_stay_text(site: Site) -> None:
    site.search(f"{EVIL} <script>alert(2)</script>. {QUERY}")
    assert f"{EVIL}{LONG}.png" in site.paths()
    assert f"{EVIL} <script>alert(2)</script>." in [line.text for line in site.all(".said")][:1][0]
    allowed = {"article", "button", "canvas", "div", "h2", "img", "li", "p", "span", "ul"}
    names = site.script("return [...document.querySelectorAll('#hits *')].map(e => e.localName)")
    assert set(names) == allowed
    assert len(site.all("#hits img")) == len(site.all(".hit"))
    sources = site.script("return [...document.images].map(i => String(i.getAttribute('src')))")
    assert "alert" not in "".join(sources), "no dialog is open either: the driver would have failed"
    assert site.all("script:not([src])") == []
    assert site.driver.get_log("browser") == []
    with pytest.raises(JavascriptException, match="TrustedHTML"):
        site.script("document.body.innerHTML = '<b>'")
    assert len(site.driver.get_log("browser")) == 1  # which is that refusal


# When it goes wrong


def test_a_busy_server_is_reported_kindly_and_answers_again_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> None:
        raise HTTPException(503, "the server has too much to do; try again in a moment")

    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "answer", busy)
        site.one("#text").send_keys(QUERY, Keys.CONTROL, Keys.ENTER)
        site.wait(lambda: site.one("#problem").is_displayed())
        assert "The server is busy just now." in site.text("#problem")
    site.one("#problem button").click()
    site.wait(lambda: site.all(".hit"))
    assert not site.one("#problem").is_displayed()


def test_a_new_search_takes_the_place_of_one_that_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, search = threading.Event(), Index.search

    def delayed(*asked: Any) -> list[QueryHits]:
        assert gate.wait(PATIENCE)
        return search(*asked)

    monkeypatch.setattr(Index, "search", delayed)
    site.one("#text").send_keys(TEXTS[0], Keys.CONTROL, Keys.ENTER)
    site.wait(lambda: site.text("#status") == "Searching …")
    site.one("#text").clear()
    site.one("#text").send_keys(TEXTS[5], Keys.CONTROL, Keys.ENTER)
    gate.set()
    answer = site.client.post("/api/search", json={"text": TEXTS[5]}).json()
    site.wait(lambda: site.paths() == [hit["path"] for hit in answer["hits"]])


def test_an_index_without_images_says_what_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(site.folder / "index", tmp_path / "index")
    remove(tmp_path / "index", ["."])
    monkeypatch.setattr(site.engine, "now", Engine(tmp_path / "index", MODEL).now)
    site.open()
    site.wait(lambda: "holds no images yet" in site.text("#problem"))


# How it looks


def test_light_and_dark_have_contrast_enough(site: Site) -> None:
    site.search(QUERY)
    grounds = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        site.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colours = site.script(
            """const ground = (e) => { for (; e; e = e.parentElement) {
                 const c = getComputedStyle(e).backgroundColor; if (c !== "rgba(0, 0, 0, 0)") return c; } };
               return ["body", "#about", "#hint", "#count", ".main", ".match", ".score", ".where", ".said",
                       ".verdict", ".mark", "footer a"].map((s) => { const e = document.querySelector(s);
                 return [s, getComputedStyle(e).color, ground(e)]; });"""
        )
        grounds.append(luminance(colours[0][2]))
        for selector, ink, ground in colours:
            low, high = sorted((luminance(ink), luminance(ground)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, selector)
    site.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert grounds[0] > 0.8
    assert grounds[1] < 0.02


def luminance(colour: str) -> float:
    """Relative luminance of rgb(r, g, b), as WCAG has it."""
    share = torch.tensor([float(x) for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = torch.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ torch.tensor([0.2126, 0.7152, 0.0722]))


def test_a_phone_shows_all_of_it_without_scrolling_sideways(site: Site) -> None:
    with phone(site):
        site.search(f"{QUERY} {LONG}")
        width = site.script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width == [360, 360]
        over = site.script(
            """return [...document.querySelectorAll("main *, header *, footer *")].filter((e) => {
                 const box = e.getBoundingClientRect();
                 return box.width > 1 && (box.left < 0 || box.right > 360.5); })
               .map((e) => e.outerHTML.slice(0, 80));"""
        )
        assert over == []
        assert site.one(".hit").location["y"] < 0.55 * 740, "the first image is in sight"
        small = [b for b in site.all("button, .button") if b.is_displayed() and b.size["height"] < 44]
        assert not small, "a finger needs 44 px"
        card = site.all(".hit")[0]
        focus(site, card.find_element(By.CSS_SELECTOR, ".sentences button"))
        drawn = site.wait(lambda: canvas(site, card))
        assert drawn.width == 2 * card.find_element(By.CSS_SELECTOR, ".frame").size["width"]


# The start, one image large, the interface


def test_the_page_opens_with_images_and_texts_to_try(site: Site) -> None:
    site.wait(lambda: len(site.all("#samples img")) == 12)
    tries = [button.text for button in site.all(".try")]
    assert 1 <= len(tries) <= 3
    known = site.engine.now.image_index.reader.calibration_texts.sentences
    assert set(tries) <= set(known)
    site.all(".try")[0].click()
    site.wait(lambda: site.all(".hit"))
    assert site.one("#text").get_property("value") == tries[0]
    assert not site.one("#start").is_displayed()
    site.driver.back()
    site.wait(lambda: site.one("#start").is_displayed())


def test_an_image_opens_large_with_its_heat_and_closes(site: Site) -> None:
    site.search(QUERY)
    first = site.paths()[0]
    for way in ("escape", "back", "button"):
        site.script("document.querySelector('.hit .frame').click()")
        site.wait(lambda: site.one("#detail").is_displayed())
        assert "show=" in site.driver.current_url
        assert first in site.text("#large")
        assert len(site.all("#large .sentences button")) == 3
        close, frame = site.one("#close"), site.one("#large .frame")
        assert close.location["y"] + close.size["height"] <= frame.location["y"], "it covers nothing"
        site.script("document.querySelector('#large .sentences button').focus()")
        site.wait(lambda: canvas(site, site.one("#large")) is not None)
        if way == "escape":
            ActionChains(site.driver).send_keys(Keys.ESCAPE).perform()
        elif way == "back":
            site.driver.back()
        else:
            site.one("#close").click()
        site.wait(lambda: not site.one("#detail").is_displayed())
        assert site.paths()[0] == first
        assert site.driver.current_url == f"{site.url}/#q={quote(QUERY)}"
    site.script("document.querySelector('.hit .frame').click()")
    site.wait(lambda: site.one("#detail").is_displayed())
    ActionChains(site.driver).send_keys(Keys.ARROW_RIGHT).perform()
    site.wait(lambda: site.paths()[1] in site.text("#large"))
    site.driver.refresh()
    site.wait(lambda: site.one("#detail").is_displayed() and len(site.all("#large .sentences button")) == 3)


def test_the_interface_has_a_page_of_its_own_scripts(site: Site) -> None:
    site.driver.get(f"{site.url}/docs")
    site.wait(lambda: "POST /api/search" in site.text("#routes"))
    for said in ("GET /api/image/{name}", "does not", "curl -s", "How many images.", "HitOut"):
        assert said in site.text("#routes")
    with phone(site):
        assert site.script("return document.documentElement.scrollWidth") == 360
