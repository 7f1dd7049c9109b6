"""A JupyterLab as `make lab` starts it, and Chromium to look at it; both once for all tests.

Playwright's own browsers are not used: a Chromium of the system is, and where there is none the
tests are skipped and say so.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items):
    """Whatever is in this folder needs the mark, with which `make test` leaves it out."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def chromium():
    """A running Chromium that knows no host but this machine."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is installed")
    rules = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", rules]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """An empty page of its own; the test fails if it asked another machine for anything."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    local = re.compile(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:|about:|file:")
    assert not [url for url in asked if not local.match(url)]


class Lab(NamedTuple):
    """A running JupyterLab: what it printed, and its copy of the lessons."""

    printed: str  # the address to open, with a token
    notebooks: Path

    def lesson(self, name: str) -> str:
        """The address that opens a lesson and nothing from before."""
        server, token = re.fullmatch(r"(http://[^/]+)/.*[?&](token=\w+)", self.printed).groups()
        return f"{server}/lab/tree/notebooks/{name}.ipynb?reset&{token}"


@pytest.fixture(scope="session")
def lab(chromium, tmp_path_factory):
    """`make lab` on a copy of the lessons, with none of the user's settings."""
    if shutil.which("make") is None:
        pytest.skip("no `make` here, which starts JupyterLab")
    folder = tmp_path_factory.mktemp("lab")
    notebooks = shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    shutil.copytree(ROOT / "docs", folder / "docs")
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = '{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}'
    (settings / "notification.jupyterlab-settings").write_text(quiet)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
    }
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        env[name] = str(folder / name.lower())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--no-browser --ip=127.0.0.1 --port={port} --ServerApp.port_retries=0"
    options += " --allow-root" if os.geteuid() == 0 else ""
    command = ["make", "-o", ".venv/.installed", "lab", f"VENV_PYTHON={sys.executable}"]
    command += [f"LESSONS={notebooks}", f"ARGS={options}"]
    log = folder / "log"
    with open(log, "wb") as out:
        server = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield Lab(_printed(server, log, port), Path(notebooks))
    finally:
        with contextlib.suppress(ProcessLookupError):  # it could not even start
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def _printed(server, log, port):
    """The address that the server prints for a reader to open, once it answers."""
    for _ in range(600):
        text = log.read_text(errors="replace")
        found = re.findall(rf"http://127\.0\.0\.1:{port}/\S+", text)
        if found:
            return found[-1]
        assert server.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"no address after a minute:\n{text}")
