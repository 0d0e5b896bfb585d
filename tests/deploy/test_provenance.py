"""Common names must not let another package take our place."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.errors import UserError
from deploy.provenance import PACKAGES, check_provenance


def test_our_packages_come_from_one_place(tmp_path: Path) -> None:
    home = check_provenance(tmp_path)
    assert all((home / name / "__init__.py").exists() for name in PACKAGES)


def test_our_own_folder_is_a_good_working_directory(tmp_path: Path) -> None:
    home = check_provenance(tmp_path)
    assert check_provenance(home) == home


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("stray", ["{}/__init__.py", "{}.py"])
def test_a_package_in_the_working_directory_is_told(tmp_path: Path, name: str, stray: str) -> None:
    file = tmp_path / stray.format(name)
    file.parent.mkdir(exist_ok=True)
    file.touch()
    with pytest.raises(UserError, match=f"would take the place of Mobula's own package {name}"):
        check_provenance(tmp_path)


def test_a_plain_folder_of_that_name_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    check_provenance(tmp_path)


def test_a_package_from_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cluster

    monkeypatch.setattr(cluster, "__file__", str(tmp_path / "cluster/__init__.py"))
    with pytest.raises(UserError, match=f"the package cluster was imported from {tmp_path}"):
        check_provenance(tmp_path)
