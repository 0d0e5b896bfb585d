"""Make sure that our four packages are the ones that run. Their names are common words, and Ray puts the working
directory of whoever starts a cluster in front of its workers' import path."""

from __future__ import annotations

import importlib
from pathlib import Path

from deploy.errors import UserError

PACKAGES = ("deploy", "cluster", "replicas", "parallel")


def check_provenance(working_directory: Path) -> Path:
    """The folder that all four packages were imported from. Raises UserError if another could take a name of theirs."""
    home = _home_of("deploy")
    for name in PACKAGES:
        if (other := _home_of(name)) != home:
            raise UserError(
                f"the package {name} was imported from {other}, but Mobula's own lies in {home}; "
                "remove that folder from PYTHONPATH or rename the package"
            )
        for stray in (working_directory / name / "__init__.py", working_directory / f"{name}.py"):
            if stray.exists() and working_directory.resolve() != home:
                raise UserError(
                    f"{stray} would take the place of Mobula's own package {name} in Ray's workers; "
                    "start mobula from another folder, or rename it"
                )
    return home


def _home_of(package: str) -> Path:
    file = importlib.import_module(package).__file__
    if file is None:
        raise UserError(f"a folder named {package} stands in the place of Mobula's own package; rename that folder")
    return Path(file).resolve().parent.parent
