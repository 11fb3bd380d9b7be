"""The page in a real browser: console without errors, pictures load, controls work."""

from collections.abc import Iterator
from typing import Any

import pytest

from lewel.pages.page import gallery_page, report_page
from tests.pages.browsing import browser, complaints, show
from tests.pages.making import NASTY, made_run, picture, random_gallery


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages on disk."""
    folder = tmp_path_factory.mktemp("pages")
    run = made_run(NASTY, predictions=(picture("dog.png"),), views=picture("views", 300).content)
    made = {
        "one": report_page([run]),
        "two": report_page([run, made_run("other, with a rather long name of a run folder")]),
        "maps": gallery_page(random_gallery()),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in made}


PIXELS = """return Array.from(document.querySelectorAll('.stage canvas')).map(
  one => Array.from(one.getContext('2d').getImageData(0, 0, one.width, one.height).data).join())"""
BROKEN = "return Array.from(document.images).filter(i => !i.complete || !i.naturalWidth).length"
OVERFLOW = "return document.documentElement.scrollWidth - window.innerWidth"


def click(opened: Any, css: str) -> None:
    opened.execute_script("document.querySelector(arguments[0]).click()", css)


@pytest.mark.parametrize("name", ["one", "two", "maps"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_a_page_opens_without_errors_and_fits_its_screen(
    opened: Any, pages: dict[str, str], name: str, width: int, dark: bool
) -> None:
    show(opened, pages[name], width, dark)
    assert complaints(opened) == []
    assert opened.execute_script("return document.images.length") > 10
    assert opened.execute_script(BROKEN) == 0
    assert opened.execute_script(OVERFLOW) <= 0
    colour = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) < 200) == dark


def test_the_map_control_changes_the_picture(opened: Any, pages: dict[str, str]) -> None:
    show(opened, pages["maps"])
    first = opened.execute_script(PIXELS)
    assert len(first) == 3 and len(set(first)) == 3
    click(opened, ".next-map")
    second = opened.execute_script(PIXELS)
    assert all(one != two for one, two in zip(first, second, strict=True))
    assert "13 (2 of 5)" in opened.execute_script(
        "return document.querySelector('.map-name').value"
    )
    click(opened, ".back-map")
    assert opened.execute_script(PIXELS) == first


def test_a_map_is_painted_by_its_values(opened: Any, pages: dict[str, str]) -> None:
    from lewel.pages.pictures import quantise, ramp

    show(opened, pages["maps"])
    click(opened, ".pick-cells")
    levels = quantise(random_gallery().images[0].views[0].maps)[0][0]
    pixels = [int(part) for part in opened.execute_script(PIXELS)[0].split(",")]
    colours = [(*ramp()[level].tolist(), 255) for level in levels.flatten()]
    assert pixels == [part for colour in colours for part in colour]


def test_the_keyboard_moves_through_maps_and_images(opened: Any, pages: dict[str, str]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(opened, pages["maps"])
    first = opened.execute_script(PIXELS)
    opened.find_element(By.CSS_SELECTOR, ".pick-map").send_keys(Keys.ARROW_RIGHT)
    assert opened.execute_script(PIXELS) != first
    opened.find_element(By.CSS_SELECTOR, ".pick-image").send_keys(Keys.ARROW_DOWN)
    shown = opened.find_element(By.CSS_SELECTOR, ".stage img").get_attribute("alt")
    assert "folder/image 1.jpg" in shown
    click(opened, ".glance summary")
    opened.find_element(By.CSS_SELECTOR, '.still[data-image="2"][data-map="3"]').send_keys("\n")
    shown = opened.find_element(By.CSS_SELECTOR, ".stage img").get_attribute("alt")
    assert "folder/image 2.jpg" in shown and "map 33" in shown


def test_opacity_0_shows_the_image(opened: Any, pages: dict[str, str]) -> None:
    show(opened, pages["maps"])
    opened.execute_script(
        "const one = document.querySelector('.pick-strength'); one.value = 0;"
        "one.dispatchEvent(new Event('input'))"
    )
    opacity = "return getComputedStyle(document.querySelector('.stage canvas')).opacity"
    assert opened.execute_script(opacity) == "0"


def test_html_in_a_name_is_not_executed(opened: Any, pages: dict[str, str]) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    for name in pages:
        show(opened, pages[name])
        with pytest.raises(NoAlertPresentException):
            _ = opened.switch_to.alert.text
        assert opened.execute_script("return document.querySelectorAll('img[src=x]').length") == 0
        assert NASTY in opened.execute_script("return document.body.innerText")
        picked = "return document.querySelector('.pick-image').selectedOptions[0].textContent"
        assert opened.execute_script(picked) == NASTY


def test_the_page_is_complete_without_scripts(opened: Any, pages: dict[str, str]) -> None:
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(opened, pages["one"], 390)
        assert complaints(opened) == []
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert opened.execute_script("return document.querySelector('.viewer').hidden")
    assert opened.execute_script("return document.querySelectorAll('.stage canvas').length") == 0
    assert opened.execute_script(BROKEN) == 0
    stills = "return Array.from(document.querySelectorAll('.still')).every(i => i.offsetWidth > 40)"
    assert opened.execute_script(stills)
    text = opened.execute_script("return document.body.innerText")
    assert "53.6%" in text and "folder/image 2.jpg" in text and "lewel pretrain" in text
