"""A real browser for tests: the one on PATH, else Playwright's own, else Debian's when we are root."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = (1440, 900)
PHONE = (390, 844)


def find_on_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def find_browser(own: str) -> str | None:
    """The program to start; `own` is where Playwright would have downloaded one to."""
    found = find_on_path() or (own if Path(own).is_file() else None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        subprocess.run(command, capture_output=True, check=False, timeout=600)
        found = find_on_path()
    return found


@contextmanager
def any_browser() -> Iterator[Browser]:
    """A browser that runs. Where there is none the test is skipped; in CI there has to be one."""
    with sync_playwright() as playwright:
        program = find_browser(playwright.chromium.executable_path)
        if program is None:
            message = "no browser: install chromium, or run playwright install chromium"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGS))
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page, and all that went wrong on it."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Requests to anybody but the server."""
    expected: list[str] = field(default_factory=list)
    """Refusals that belong to the story, as patterns: `422 .*/jobs`."""
    is_calm: bool = True
    """False while the server is away: the browser itself then complains about each request."""

    def open(self, route: str) -> None:
        self.page.evaluate("hash => { location.hash = hash }", route)

    def hear(self, message: ConsoleMessage) -> None:
        # What the server refuses is seen by `judge`, which knows by whom and why.
        is_refusal = message.text.startswith("Failed to load resource: the server responded")
        if message.type in ("error", "warning") and self.is_calm and not is_refusal:
            self.complaints.append(f"{message.type}: {message.text}")

    def see(self, request: Request) -> None:
        if urlsplit(request.url)[:2] != urlsplit(self.origin)[:2]:
            self.strangers.append(request.url)

    def judge(self, response: Response) -> None:
        told = f"{response.status} {response.url}"
        if response.status >= 400 and not any(re.match(pattern, told) for pattern in self.expected):
            self.complaints.append(told)

    def check(self) -> None:
        assert self.complaints == []
        assert self.strangers == []


@contextmanager
def visit(
    browser: Browser,
    link: str,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "dark",
    wait: bool = True,
    expected: Sequence[str] = (),
) -> Iterator[Visit]:
    """Opens a link in a session of its own; at the end nothing may have gone wrong."""
    width, height = size
    page = _blank_page(browser, size == PHONE)
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="light" if scheme == "light" else "dark", reduced_motion="reduce")
    visitor = Visit(page, link, expected=list(expected))
    with _listening(visitor):
        try:
            page.goto(link)
            if wait:
                page.locator("[data-testid=connection].live").wait_for()
            yield visitor
            _forget(page)
        except BaseException:
            del _PAGES[browser][size == PHONE]
            page.context.close()
            raise
    visitor.check()


@contextmanager
def _listening(visitor: Visit) -> Iterator[None]:
    def complain(error: object) -> None:
        visitor.complaints.append(f"exception: {error}")

    heard = (
        ("console", visitor.hear),
        ("pageerror", complain),
        ("request", visitor.see),
        ("response", visitor.judge),
    )
    page: Any = visitor.page
    for event, hear in heard:
        page.on(event, hear)
    yield
    for event, hear in heard:
        page.remove_listener(event, hear)


_PAGES: WeakKeyDictionary[Browser, dict[bool, Page]] = WeakKeyDictionary()
"""By whether it is touched. To make one, with processes of its own, takes longer than to open a link in it."""


def _blank_page(browser: Browser, is_touched: bool) -> Page:
    """A page without cookies and storage, which visits have one after the other."""
    known = _PAGES.setdefault(browser, {})
    if is_touched not in known:
        context = browser.new_context(has_touch=is_touched)
        context.set_default_timeout(15_000)
        known[is_touched] = context.new_page()
    return known[is_touched]


def _forget(page: Page) -> None:
    """Ends a visit so that the next one knows nothing of it."""
    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.goto("about:blank")
    page.context.clear_cookies()
