"""The picture of a search in README.md: python docs/figures/search.py photos.index docs/report.png

Searches an index for a query, QUERY where none is given, and takes a picture of the first hit, with the heat of
its first sentence. It needs a trained model, selenium, chromium and chromedriver. The index of docs/photographs:

    grainline train clip/starter --data FLICKR8K/train-*.tar --out runs/starter
    grainline index build docs/photographs --model runs/starter --out photos.index --calibration-texts DEV

FLICKR8K holds the 6,000 images of train, with five captions each; DEV is a tar with 400 images of its dev.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

from grainline.index.output import write_html
from grainline.index.search import Options, open_index

QUERY = "Many dogs run through the snow. They pull a man on a sled. Children swim in a pool."


def main(index_folder: str, out: str, query: str = QUERY) -> None:
    index = open_index(index_folder)
    options = Options(heat=True)
    results = index.search([query], k=1, options=options)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "hits.html")
        write_html(page, results, index, options)
        settings = webdriver.ChromeOptions()
        for flag in (
            "headless",
            "no-sandbox",
            "disable-gpu",
            "window-size=1000,1400",
            f"user-data-dir={folder}/x",
        ):
            settings.add_argument(f"--{flag}")
        settings.binary_location = shutil.which("chromium") or ""
        driver = webdriver.Chrome(settings, webdriver.ChromeService(shutil.which("chromedriver")))
        driver.get(page.as_uri())
        driver.find_elements(By.CSS_SELECTOR, "article.card input[type=radio]")[1].click()
        driver.find_element(By.CSS_SELECTOR, "article.card").screenshot(out)
        driver.quit()
    # The palette of 256 colours by k-means: the median cut has no blue left for the scale.
    Image.open(out).convert("RGB").quantize(256, kmeans=10).save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
