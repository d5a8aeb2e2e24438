"""Take a screenshot of a report: `report_screenshot.py REPORT.html PICTURE.png`.

Needs Chromium (Debian's package `chromium`). The README's picture is docs/report.png.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="the report's HTML file")
    parser.add_argument("picture", type=Path, help="the PNG file to write")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in CSS pixels")
    parser.add_argument("--height", type=int, default=1800, help="of the window, in CSS pixels")
    parser.add_argument("--scale", type=float, default=1.0, help="device pixels per CSS pixel")
    parser.add_argument("--dark", action="store_true", help="use the dark color scheme")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("report_screenshot: chromium is not installed", file=sys.stderr)
        return 2
    picture = options.picture.absolute()
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            *_QUIET,
            *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] * options.dark),
            f"--user-data-dir={profile}",
            f"--window-size={options.width},{options.height}",
            f"--force-device-scale-factor={options.scale}",
            f"--screenshot={picture}",
            options.report.absolute().as_uri(),
        ]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    print(f"{picture}: {picture.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
