"""Draw a study's figures as PNG from its finished cells: `study_png.py STUDY.toml FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from mugrpo.extensions.lab.study.outcome import Results
from mugrpo.extensions.lab.study.page import RESULTS, draw, folder_of
from mugrpo.extensions.lab.study.spec import load_study
from mugrpo.report.charts import png


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="the study's TOML file")
    parser.add_argument("folder", type=Path, help="where to write the pictures")
    parser.add_argument("--scale", type=float, default=2.0, help="pixels per point")
    options = parser.parse_args()
    study, _ = load_study(options.study)
    rows = Results(folder_of(options.study) / RESULTS).rows
    options.folder.mkdir(parents=True, exist_ok=True)
    for figure in study.figures:
        file = options.folder / f"{options.study.stem}-{figure.name}.png"
        file.write_bytes(png(draw(study, figure, rows), options.scale))
        print(file)


if __name__ == "__main__":
    main()
