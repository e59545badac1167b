"""Settings: where each value comes from, which source wins, and what an error tells its reader."""

import pickle
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from cluster.settings import Settings, load_settings, packaged_file
from models.errors import SettingsError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in Settings.model_fields:
        monkeypatch.delenv(f"TXC_{key.upper()}", raising=False)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text("fetch_threads: 7\nprefetch: off\nmempool_bytes: 1 MB\n")
    return file


def test_defaults_of_core() -> None:
    settings = load_settings()
    # Core: DEFAULT_MAX_MEMPOOL_SIZE_MB 300; prefetch has 8 MiB for each of at most 8 collections (SPEC 1.8).
    assert settings.mempool_bytes == 300_000_000
    assert (settings.collection_budget, settings.collection_actors) == (8 * 1024 * 1024, 8)
    assert settings.script_mode == "deferred"
    assert settings.now is None


def test_store_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings().store == tmp_path.resolve() / ".txcollection" / "regtest"


def test_store_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert load_settings(store=f"{tmp_path}/link/../real/") == load_settings(store=tmp_path / "link")


def test_every_key_is_in_the_packaged_file_with_a_comment() -> None:
    packaged = packaged_file("ray_config.yaml")
    assert packaged is not None
    text = packaged.read_text()
    assert set(yaml.safe_load(text)) == set(Settings.model_fields) - {"config"}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if "  # " not in line] == []


def test_every_key_has_a_description() -> None:
    assert [key for key, _, description in load_settings().as_rows() if not description] == []


def test_file_beats_defaults(user_file: Path) -> None:
    settings = load_settings(config=user_file)
    assert (settings.fetch_threads, settings.prefetch, settings.mempool_bytes) == (7, "off", 1_000_000)
    assert settings.config == user_file
    assert settings.batch_outpoints == 512


def test_file_named_by_environment(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_CONFIG", str(user_file))
    assert load_settings().fetch_threads == 7


def test_environment_beats_file(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_FETCH_THREADS", "5")
    assert load_settings(config=user_file).fetch_threads == 5


def test_keyword_beats_environment(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_FETCH_THREADS", "5")
    assert load_settings(config=user_file, fetch_threads=3).fetch_threads == 3


def test_keyword_none_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_NOW", "1700000000")
    assert load_settings(now=None).now == 1_700_000_000


def test_empty_variable_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_FETCH_THREADS", "")
    assert load_settings().fetch_threads == 32


def test_null_in_the_environment(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file.write_text("now: 5\n")
    monkeypatch.setenv("TXC_NOW", "null")
    assert load_settings(config=user_file).now is None


@pytest.mark.parametrize(
    ("written", "size"),
    [("512 MiB", 536_870_912), ("300MB", 300_000_000), ("1 GiB", 1_073_741_824), (90 << 20, 94371840)],
)
def test_sizes_with_units(written: str | int, size: int) -> None:
    assert load_settings(object_store_memory=written).object_store_memory == size


@pytest.mark.parametrize("address", ["local", "auto", "127.0.0.1:6399", "ray://head:10001", "[::1]:6399"])
def test_addresses(address: str) -> None:
    assert load_settings(address=address).address == address


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().fetch_threads = 3  # type: ignore[misc]


def test_pickles_without_asking_the_sources_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(fetch_threads=3)
    sent = pickle.dumps(settings)
    monkeypatch.setenv("TXC_FETCH_THREADS", "9")
    assert pickle.loads(sent) == settings


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("fetch_threads", 0, "a whole number from 1 to 256"),
        ("fetch_threads", "many", "a whole number from 1 to 256"),
        ("fetch_threads", True, "a whole number from 1 to 256"),
        ("fetch_threads", 1.5, "a whole number from 1 to 256"),
        ("collection_actors", 9, "a whole number from 1 to 8"),
        ("collection_warm", 9, "a whole number from 0 to 8"),
        ("prefetch", "maybe", "on or off"),
        ("script_mode", "eager", "deferred or inline"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("address", "nowhere", "local, auto or HOST:PORT"),
        ("address", "host:99999", "local, auto or HOST:PORT"),
        ("object_store_memory", "12 parsecs", "a size from 83886080 to 1099511627776 bytes"),
        ("now", -1, "a whole number from 0 to 4294967295, or null"),
        ("script_deadline_s", "soon", "a number from 0.01 to 3600"),
        ("store", 3, "a path"),
    ],
)
def test_error_names_key_value_source_and_what_is_allowed(key: str, value: object, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(**{key: value})
    assert str(caught.value).startswith(f"{key} is {value!r} (argument), but must be {allowed}")


def test_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_FETCH_THREADS", "x")
    with pytest.raises(SettingsError, match=r"fetch_threads is 'x' \(environment variable TXC_FETCH_THREADS\)"):
        load_settings()


def test_error_names_the_file(user_file: Path) -> None:
    user_file.write_text("fetch_threads: x\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(config=user_file)
    assert f"fetch_threads is 'x' (file {user_file})" in str(caught.value)


def test_bounds_that_depend_on_another_key() -> None:
    with pytest.raises(SettingsError, match=r"collection_warm is 3 .* from 0 to collection_actors \(2\)"):
        load_settings(collection_actors=2, collection_warm=3)


def test_every_error_is_named() -> None:
    with pytest.raises(SettingsError, match="fetch_threads is .*; prefetch is "):
        load_settings(fetch_threads=0, prefetch="x")


def test_unknown_keyword() -> None:
    with pytest.raises(SettingsError, match=r"no setting fetch_thread \(argument\): did you mean fetch_threads\?"):
        load_settings(fetch_thread=3)


def test_unknown_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXC_FETCH_THREADZ", "3")
    with pytest.raises(SettingsError, match=r"TXC_FETCH_THREADZ\): did you mean fetch_threads\?"):
        load_settings()


def test_unknown_key_in_file(user_file: Path) -> None:
    user_file.write_text("colour: red\n")
    with pytest.raises(SettingsError, match=r"no setting colour \(file .*mine.yaml\): ray_config.yaml lists all"):
        load_settings(config=user_file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML, line"),
        ("- 1\n", "must hold lines of the form `key: value`"),
        ("7: 8\n", "must hold lines of the form `key: value`"),
        ("fetch_threads: 1\nfetch_threads: 2\n", r"fetch_threads stands twice in .* \(line 2\)"),
        ("config: other.yaml\n", "config cannot be set in a settings file"),
    ],
)
def test_file_that_is_no_settings_file(user_file: Path, text: str, message: str) -> None:
    user_file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load_settings(config=user_file)


def test_empty_file_changes_nothing(user_file: Path) -> None:
    user_file.write_text("# nothing\n")
    assert load_settings(config=user_file).fetch_threads == 32


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_settings(config=tmp_path / "none.yaml")


def test_file_that_is_no_text(user_file: Path) -> None:
    user_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="cannot be read: it is not UTF-8 text"):
        load_settings(config=user_file)
