"""Models from the Hugging Face hub, for machines that can reach it."""

from __future__ import annotations

from pathlib import Path

from deploy.errors import CatalogError

_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*"]
_PATTERNS += ["special_tokens_map.json", "vocab*", "merges.txt", "*.model", "chat_template*"]


def fetch_from_hub(repository: str) -> Path:
    """The folder of `repository` in the hub's own cache, downloaded as far as it is not there yet."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=_PATTERNS))
    except GatedRepoError as error:
        raise CatalogError(
            f"{repository} is given only to those who accepted its terms on the hub: accept them there and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise CatalogError(f"the hub has no model {repository}, or it is private and HF_TOKEN is not set") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise CatalogError(
            f"{repository} cannot be fetched: the model hub cannot be reached from this machine; "
            "use a catalogue name (see: mobula models), a local folder, or a .gguf file"
        ) from error
