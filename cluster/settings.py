"""Every setting, from four sources in rising priority: the packaged `ray_config.yaml`, a file of the user's, the
environment (`TXC_<KEY>`), and keywords. What does not validate is a `SettingsError` that names key, value and source.

Settings are frozen and can be pickled, so actors get them as they are. Defaults stand in `ray_config.yaml` alone.
"""

import difflib
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le
from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from models.errors import SettingsError

__all__ = ["ENV_PREFIX", "Settings", "load_settings", "packaged_file"]

ENV_PREFIX = "TXC_"
CONFIG_FILE = "ray_config.yaml"
NO_SETTINGS = {"TXC_FAULT"}  # variables with our prefix that are for tests, not for settings

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
ONE_DAY = 86_400  # seconds

_BYTE_SIZE = TypeAdapter(ByteSize)
_HOST_PORT = re.compile(r"(ray://)?(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def packaged_file(name: str) -> Path | None:
    """A file that comes with the distribution, by its path from the repository's root; None if it was not installed.

    An editable install has the repository; any other has copies below `<prefix>/share/txcollection`.
    """
    places = (Path(__file__).resolve().parents[1] / name, Path(sys.prefix) / "share" / "txcollection" / name)
    return next((place for place in places if place.is_file()), None)


def _bytes(value: Any) -> Any:
    """Takes `512 MiB` as well as a plain number."""
    return int(_BYTE_SIZE.validate_python(value)) if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    """YAML 1.1 reads a bare `on` as true."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


Bytes = Annotated[int, BeforeValidator(_bytes)]
Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch)]


class Settings(BaseSettings):
    """All settings, flat. Make one with `load_settings`; the defaults are in `ray_config.yaml`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        env_parse_none_str="null",
        validate_default=True,
    )

    config: Path | None = Field(None, description="the user's file these settings were read from, if there was one")

    store: Path = Field(description="the directory of the store to serve")
    address: str = Field(description="Ray to use: local (one of our own), auto (the running one), or HOST:PORT")
    object_store_memory: Bytes = Field(
        ge=80 * MiB, le=1024 * GiB, description="shared memory of a Ray of our own for messages, bytes"
    )

    fetch_workers: int = Field(ge=0, le=256, description="processes that read coins; 0: one per host")
    fetch_threads: int = Field(ge=1, le=256, description="reading threads in each fetch worker")
    fetch_block_cache: Bytes = Field(ge=0, le=64 * GiB, description="database block cache per fetch worker, bytes")
    replica_dir: str = Field(description="on other hosts of the same Ray: the directory of the replica of the coins")

    script_workers: int = Field(ge=0, le=1024, description="processes that verify scripts; 0: number of cores + 1")
    script_threads: int = Field(ge=1, le=256, description="verifying threads in each script worker")

    template_actors: int = Field(ge=1, le=64, description="processes that check blocks")
    collection_actors: int = Field(ge=1, le=8, description="most collections that prefetch at a time, a process each")
    collection_warm: int = Field(ge=0, le=8, description="collection processes kept ready for the next client")
    spare_workers: int = Field(ge=0, le=64, description="spare fetch and script processes of each kind")

    prefetch: Switch = Field(description="whether coins are read while the client is away")
    validation_fetch: Literal["parallel", "serial"] = Field(
        description="how the check reads coins that were not prefetched"
    )
    read_through_cache: Switch = Field(description="whether the check looks into the coins cache first")
    script_mode: Literal["deferred", "inline"] = Field(
        description="which failure comes first: as Core with script threads (deferred) or without (inline)"
    )
    speculate_scripts: Switch = Field(description="whether scripts are verified while the client is away")
    collection_budget: Bytes = Field(
        ge=0, le=1 * GiB, description="queue and observations of one collection together, bytes"
    )
    batch_outpoints: int = Field(ge=1, le=24_390, description="most outpoints in a speculative request")
    batches_in_flight: int = Field(ge=1, le=256, description="most speculative reads of one collection under way")
    local_reads: int = Field(
        ge=0, le=24_390, description="most outpoints that a check reads itself instead of asking a worker"
    )
    batch_script_inputs: int = Field(ge=1, le=24_390, description="most inputs in a speculative script request")
    script_batches_in_flight: int = Field(
        ge=1, le=256, description="most speculative script requests of one collection under way"
    )
    heartbeat_ms: int = Field(
        ge=0, le=1000, description="milliseconds between messages that keep processes awake; 0: none"
    )

    mempool_bytes: Bytes = Field(ge=0, le=64 * GiB, description="most that mempool transactions may take, bytes")
    script_cache_entries: int = Field(ge=0, le=100_000_000, description="most transactions remembered as verified")
    coins_cache_bytes: Bytes = Field(ge=0, le=1024 * GiB, description="most that the coins cache may take, bytes")
    mempool_verify: Switch = Field(description="whether scripts of mempool transactions are verified ahead")
    mempool_outputs: Switch = Field(description="whether outputs of mempool transactions are looked for ahead (BIP30)")

    now: int | None = Field(ge=0, le=0xFFFFFFFF, description="Unix time to check against; null: the clock's")
    script_deadline_s: float = Field(ge=0.01, le=3600, description="seconds a batch of scripts may take")
    check_deadline_s: float = Field(ge=0.01, le=3600, description="seconds a check may take")
    read_deadline_s: float = Field(ge=0.01, le=3600, description="seconds a batch of reads may take")
    tip_old_s: int = Field(ge=1, le=10_000 * ONE_DAY, description="seconds after which the tip counts as old")

    max_collections: int = Field(ge=1, le=1_000_000, description="most open collections together")
    collections_bytes: Bytes = Field(
        ge=1 * MiB, le=1024 * GiB, description="most that open collections may take together, bytes"
    )
    max_collections_per_client: int = Field(ge=1, le=1_000_000, description="most open collections of one client")
    supplied_bytes_per_client: Bytes = Field(
        ge=0, le=64 * GiB, description="most that transactions supplied by one client may take, bytes"
    )
    pending_calls_per_client: int = Field(ge=1, le=1_000_000, description="most waiting calls of one client")
    calls_per_second_per_client: int = Field(
        ge=0, le=1_000_000, description="most calls of one client in a second; 0: any number"
    )
    collection_idle_s: float = Field(
        ge=0.01, le=365 * ONE_DAY, description="seconds without a call after which a collection is closed"
    )

    rpc_concurrency: int = Field(ge=1, le=100_000, description="most JSON-RPC requests under way at a time")
    rpc_body_bytes: Bytes = Field(ge=1 * KiB, le=1 * GiB, description="most that a JSON-RPC request may take, bytes")
    rpc_bodies_bytes: Bytes = Field(
        ge=1 * KiB, le=64 * GiB, description="most that JSON-RPC requests under way may take together, bytes"
    )

    dump_dir: Path | None = Field(description="directory for declarations that were found invalid; null: none")
    dump_files: int = Field(ge=1, le=1_000_000, description="most files in dump_dir")

    log_level: Literal["debug", "info", "warning", "error"] = Field(description="what is logged")

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`fetch_threads: on` is a slip, not a 1."""
        if isinstance(value, bool) and not _is_switch(cls.model_fields[info.field_name or ""]):
            raise ValueError("a switch is not allowed here")
        return value

    @field_validator("store", "config", "dump_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        """A store has one name, whichever way it was written."""
        return None if value is None else value.expanduser().resolve()

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        matched = _HOST_PORT.fullmatch(value)
        if value not in ("local", "auto") and not (matched and 0 < int(matched[3]) < 65536):
            raise ValueError("local, auto or HOST:PORT")
        return value

    @field_validator("collection_warm")
    @classmethod
    def _warm_fits(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("collection_actors", value)
        if value > most:
            raise ValueError(f"a whole number from 0 to collection_actors ({most})")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The four sources, highest priority first."""
        return tuple(source for _, source in _sources(settings_cls, init_settings()))

    def as_rows(self) -> list[tuple[str, str, str]]:
        """Key, value and description of every setting, for printing."""
        fields = type(self).model_fields
        return [(key, str(getattr(self, key)), field.description or "") for key, field in fields.items()]


def _is_switch(field: FieldInfo) -> bool:
    return any(isinstance(item, BeforeValidator) and item.func is _switch for item in field.metadata)


def _read_yaml(path: Path) -> dict[str, Any]:
    """The keys of a settings file. Raises `SettingsError` for what is not one flat mapping with each key once."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"the settings file {path} cannot be read: {why}") from error
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(
            f"the settings file {path} is not YAML{where}: {getattr(error, 'problem', error)}"
        ) from error
    if values is None:
        return {}
    if not isinstance(node, yaml.MappingNode) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"the settings file {path} must hold lines of the form `key: value`")
    seen: set[str] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise SettingsError(
                f"{key.value} stands twice in the settings file {path} (line {key.start_mark.line + 1})"
            )
        seen.add(key.value)
    if "config" in seen:
        raise SettingsError(f"config cannot be set in a settings file ({path}): give it as an argument or TXC_CONFIG")
    return values


def _sources(cls: type[BaseSettings], keywords: dict[str, Any]) -> list[tuple[str, PydanticBaseSettingsSource]]:
    """The sources with their names for messages, highest priority first."""
    environment = EnvSettingsSource(cls)
    found: list[tuple[str, PydanticBaseSettingsSource]] = [
        ("argument", InitSettingsSource(cls, keywords)),
        ("environment", environment),
    ]
    user_file = keywords.get("config") or environment().get("config")
    if user_file is not None:
        path = Path(user_file).expanduser()
        found.append((f"file {path}", InitSettingsSource(cls, _read_yaml(path))))
    packaged = packaged_file(CONFIG_FILE)
    if packaged is None:
        raise SettingsError(f"{CONFIG_FILE} with the defaults is missing from this installation: install it again")
    found.append((f"file {packaged}", InitSettingsSource(cls, _read_yaml(packaged))))
    return found


def _allowed(field: FieldInfo) -> str:
    """What a setting may be, in words."""
    options = getattr(field.annotation, "__args__", ())
    if field.annotation is Path:
        return "a path"
    if field.annotation is str:
        return "a text"
    if Path in options:
        return "a path, or null"
    if options and all(isinstance(option, str) for option in options):
        return " or ".join(options) if len(options) == 2 else f"{', '.join(options[:-1])} or {options[-1]}"
    low = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    kind = "a number" if field.annotation is float else "a whole number"
    if any(isinstance(item, BeforeValidator) and item.func is _bytes for item in field.metadata):
        return f"a size from {low} to {high} bytes, as a number or like 512 MiB"
    return f"{kind} from {low} to {high}" + (", or null" if type(None) in options else "")


def _unknown(key: str, source: str) -> str:
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"{CONFIG_FILE} lists all of them"
    return f"there is no setting {key} ({source}): {hint}"


def _explain(error: ValidationError, sources: list[tuple[str, PydanticBaseSettingsSource]]) -> str:
    """One line for everything that does not validate: key, value, source, and what is allowed."""
    given = [(name, source()) for name, source in sources]
    lines = []
    for problem in error.errors(include_url=False):
        key = str(problem["loc"][0]) if problem["loc"] else ""
        name, value = next(((name, values[key]) for name, values in given if key in values), ("defaults", None))
        if name == "environment":
            name = f"environment variable {ENV_PREFIX}{key.upper()}"
        if problem["type"] == "extra_forbidden":
            lines.append(_unknown(key, name))
            continue
        if problem["type"] == "missing":
            lines.append(f"{key} has no default in {CONFIG_FILE}: install again")
            continue
        allowed = _allowed(Settings.model_fields[key]) if key in Settings.model_fields else ""
        if key in ("address", "collection_warm") and problem["type"] == "value_error":
            allowed = str(problem["ctx"]["error"])
        lines.append(f"{key} is {value!r} ({name}), but must be {allowed}")
    return "; ".join(lines)


def load_settings(**overrides: Any) -> Settings:
    """Reads all sources and checks them. A keyword that is None leaves its key to the other sources.

    `config` names the user's file. Raises `SettingsError` naming key, value, source and what is allowed.
    """
    keywords = {key: value for key, value in overrides.items() if value is not None}
    for variable in os.environ:
        key = variable.removeprefix(ENV_PREFIX).lower()
        if variable.startswith(ENV_PREFIX) and variable not in NO_SETTINGS and key not in Settings.model_fields:
            raise SettingsError(_unknown(key, f"environment variable {variable}"))
    try:
        return Settings(**keywords)
    except ValidationError as error:
        raise SettingsError(_explain(error, _sources(Settings, keywords))) from None
