"""From the command line, the environment and a TOML file to the one configuration.

Order: command line, then environment, then `--config FILE`, then default. Whatever is unknown or
out of range is refused with a valid name that is near, or the bounds, and the place it came from.

Must not read the process's own argv or environment: both are arguments.
"""

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import platformdirs
from msgspec import inspect

from common.config import DecodeConfig, PrefillConfig, ServeConfig, tuning
from common.errors import SetupError
from common.ids import Role
from common.sections import HttpOptions, ModelOptions, PoolTuning, ProcessOptions, Section
from launch.flags import Parser, refusal, remark, without_unneeded
from launch.options import ENV_PREFIX, Option, Value, hint, options_of

OPTIONS = options_of(ServeConfig)
ALIASES = {"prefill": "prefill.workers", "decode": "decode.workers"}
"""Short names of flags and environment variables: `--prefill 2`."""

VLLM_API_KEY = "VLLM_API_KEY"
"""A variable that is read like BATON_API_KEY, which wins."""

SECRET_VARIABLES = frozenset(o.env for o in OPTIONS.values() if o.is_secret) | {VLLM_API_KEY}
"""Not to be handed on to other processes."""

_HEADINGS: dict[type[Section], str] = {
    ModelOptions: "the model",
    HttpOptions: "the HTTP API",
    ServeConfig: "the server",
    PrefillConfig: "the prefill pool",
    DecodeConfig: "the decode pool",
    PoolTuning: "tuning",
    ProcessOptions: "the processes",
}
_TUNING_NOTE = (
    "For both pools; --prefill.NAME and --decode.NAME, such as --prefill.chunk-tokens, "
    "are for one pool and win. Where the default depends on the pool, [prefill, decode]."
)
_SOURCES_NOTE = (
    "Each flag is also a key of --config FILE (TOML: max_model_len = 4096; "
    "[prefill] chunk_tokens = 256) and a variable (BATON_MAX_MODEL_LEN, "
    "BATON_PREFILL__CHUNK_TOKENS). Order: flag, variable, file, default."
)
_ROLES = (Role.PREFILL, Role.DECODE)
_CONFIG_ENV = f"{ENV_PREFIX}CONFIG"
_JOIN = re.compile(r"(?:(?:tcp|ipc)://.+|[^/:\s]+:\d+|\[[^\]\s]+\]:\d+)")
_SERVICE_LINK = re.compile(rf"{ENV_PREFIX}(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")


_Flags = dict[str, str]
"""What a command line says, by key."""

_NAME_FLAG = OPTIONS["served_model_name"].flag


@dataclass(frozen=True, slots=True)
class Joined:
    """What a worker that runs by itself was told."""

    config: ServeConfig
    join: str  # ZeroMQ address


def to_nobody(_remark: str) -> None:
    """For whoever wants no warnings."""


def load_serve(
    argv: Sequence[str], environ: Mapping[str, str], warn: Callable[[str], None] = to_nobody
) -> ServeConfig:
    """The configuration of `baton serve`. Raises SetupError; exits after --help.

    `warn` hears of each flag of another server's that was given and is not needed.
    """
    parser = _parser("baton serve", "Serve a model over HTTP: a prefill pool and a decode pool.")
    _add_options(parser, OPTIONS.values(), _ROLES, _TUNING_NOTE)
    return _load(_parse(parser, argv, warn), environ)


@dataclass(frozen=True, slots=True)
class ToCheck:
    """What `baton check` was told."""

    config: ServeConfig
    as_json: bool


def load_check(
    argv: Sequence[str], environ: Mapping[str, str], warn: Callable[[str], None] = to_nobody
) -> ToCheck:
    """Of `baton check`, which takes what `baton serve` takes. Raises SetupError; exits after
    --help."""
    parser = _parser("baton check", "What this machine can do, and what would stop it from serving")
    parser.add_argument("--json", action="store_const", const="json", help="for programs")
    _add_options(parser, OPTIONS.values(), _ROLES, _TUNING_NOTE)
    flags = _parse(parser, argv, warn)
    as_json = flags.pop("json", None) is not None
    return ToCheck(_load(flags, environ), as_json)


def load_worker(
    role: Role,
    argv: Sequence[str],
    environ: Mapping[str, str],
    warn: Callable[[str], None] = to_nobody,
) -> Joined:
    """The configuration of `baton prefill` or `baton decode`, its pool of one worker.

    A file and variables may be those of the server it joins. Raises SetupError; exits after --help.
    """
    parser = _parser(f"baton {role}", f"Run one {role} worker for a server that is running.")
    parser.add_argument("--join", metavar="ADDR", required=True, help="shown by `baton serve`")
    own = (option for option in OPTIONS.values() if _is_for_worker(option))
    _add_options(parser, own, [role], f"Over what a file says under [{role}].")
    flags = _parse(parser, argv, warn)
    join = str(flags.pop("join"))
    if _JOIN.fullmatch(join) is None or not join.isprintable():
        raise SetupError(f"--join {join}: must be tcp://HOST:PORT, HOST:PORT or ipc://PATH")
    config = _load(flags, environ, pool=f"{role}.")
    pool = msgspec.structs.replace(
        config.prefill if role is Role.PREFILL else config.decode, workers=1
    )
    return Joined(
        config=msgspec.structs.replace(config, **{str(role): pool}),
        join=join if "://" in join else f"tcp://{join}",
    )


def load_fetch(argv: Sequence[str], environ: Mapping[str, str]) -> Path:
    """The cache directory that `baton fetch` fills. Raises SetupError; exits after --help."""
    parser = _parser("baton fetch", "Download the default model, and print where it is.", "[flags]")
    _add_options(parser, [OPTIONS["cache_dir"]], _ROLES, _TUNING_NOTE)
    return cache_dir(_load(_parse(parser, argv, to_nobody), environ))


def cache_dir(config: ServeConfig) -> Path:
    """Where fetched models are kept."""
    told = config.cache_dir or platformdirs.user_cache_dir("baton")
    try:
        return Path(told).expanduser()
    except RuntimeError:  # this user has none, and HOME is not set
        raise SetupError(
            f"cache_dir: {told}: nobody knows whose home ~ is; name it whole"
        ) from None


def _load(flags: _Flags, environ: Mapping[str, str], *, pool: str = "") -> ServeConfig:
    """`pool`: a worker's own section, "decode.", which its tuning flags speak of."""
    file = flags.pop("config", environ.get(_CONFIG_ENV))
    values = _from_file(file) if file is not None else {}
    values |= _from_environ(environ)
    for key, text in flags.items():
        option = OPTIONS[key]
        owner = pool if option.section is PoolTuning else ""
        values[owner + key] = _from_text(option, text, f"{option.flag} ")
    nested: dict[str, Value | dict[str, Value]] = {key: {} for key in ALIASES}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        target = nested[section] if section else nested
        assert isinstance(target, dict)
        target[name] = value
    try:
        return msgspec.convert(nested, ServeConfig)
    except msgspec.ValidationError as error:  # two values that contradict each other
        raise SetupError(str(error)) from None


def _from_text(option: Option, text: str, name: str) -> Value:
    """`name`: where it stands, up to the text: "--port ", "BATON_PORT="."""
    try:
        return option.from_text(text)
    except ValueError as error:
        told = name[:-1] if option.is_secret else name + text
        raise SetupError(f"{told}: {error}") from None


def _from_environ(environ: Mapping[str, str]) -> dict[str, Value]:
    known = {option.env: option for option in OPTIONS.values()}
    known |= {ENV_PREFIX + alias.upper(): OPTIONS[key] for alias, key in ALIASES.items()}
    values: dict[str, Value] = {}
    if VLLM_API_KEY in environ:
        option = OPTIONS["api_key"]
        values[option.key] = _from_text(option, environ[VLLM_API_KEY], f"{VLLM_API_KEY}=")
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name == _CONFIG_ENV:
            continue
        if _is_of_kubernetes(name, text):
            continue
        if name not in known:
            near = hint(name, [*known, _CONFIG_ENV])
            raise SetupError(f"unknown environment variable {name}{near}")
        values[known[name].key] = _from_text(known[name], text, f"{name}=")
    return values


def _is_of_kubernetes(name: str, text: str) -> bool:
    """Set in every container beside a Service named `baton`; not meant for us."""
    return _SERVICE_LINK.fullmatch(name) is not None or (
        name == f"{ENV_PREFIX}PORT" and "://" in text
    )


def _from_file(path: str) -> dict[str, Value]:
    if not path:  # of a variable that is not set, say
        raise SetupError("--config: the name of the file is empty")
    try:  # some editors begin a file with a mark of its encoding
        table = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        raise SetupError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"--config {path}: not TOML: {error}") from None
    except RecursionError:
        raise SetupError(f"--config {path}: not TOML: nested too deep") from None
    return _from_table(table, "", f"{path}: ")


def _from_table(table: dict[str, object], prefix: str, where: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, value in table.items():
        key = prefix + name
        if key in ALIASES:
            if not isinstance(value, dict):
                raise SetupError(f"{where}{key} is a section: write `workers = ...` under [{key}]")
            values |= _from_table(cast("dict[str, object]", value), f"{key}.", where)
        elif key in OPTIONS:
            try:
                values[key] = OPTIONS[key].check(value)
            except ValueError as error:
                told = "" if OPTIONS[key].is_secret else f" = {value!r}"
                raise SetupError(f"{where}{key}{told}: {error}") from None
        else:
            near = remark(f"--{key.replace('_', '-')}", key, [*OPTIONS, *ALIASES])
            raise SetupError(f"{where}unknown key {key}{near}")
    return values


def _parser(prog: str, description: str, arguments: str = "[MODEL] [flags]") -> Parser:
    parser = Parser(
        prog=prog,
        description=description,
        epilog=_SOURCES_NOTE,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=40, width=100),
        usage=f"{prog} {arguments}",
    )
    parser.add_argument("--config", metavar="FILE", help="read settings from this TOML file")
    return parser


def _add_options(
    parser: Parser, options: Iterable[Option], roles: Sequence[Role], tuning_note: str
) -> None:
    """One heading per section; what is repeated per pool is accepted and listed once."""
    listed = list(options)
    for section, heading in _HEADINGS.items():
        own = [option for option in listed if option.section is section]
        if own:
            note = tuning_note if section is PoolTuning else None
            group = parser.add_argument_group(heading, note)
            for option in own:
                _add_option(group.add_argument, option, roles)


def _add_option(add: Callable[..., argparse.Action], option: Option, roles: Sequence[Role]) -> None:
    text = argparse.SUPPRESS
    if option.section is not PoolTuning or option.key == option.name:
        text = f"{option.description}{_default_note(option, roles)}".replace("%", "%%")
    if option.is_switch:
        pool, dot, name = option.flag.removeprefix("--").rpartition(".")
        off_text = text if text is argparse.SUPPRESS else "do not"
        switch = {"dest": option.key, "action": "store_const"}
        add(option.flag, **switch, const="true", help=text)
        add(f"--{pool}{dot}no-{name}", **switch, const="false", help=off_text)
        return
    aliases = (f"--{alias}" for alias, key in ALIASES.items() if key == option.key)
    several: dict[str, str] = {"nargs": "+", "action": "append"} if option.is_list else {}
    add(option.flag, *aliases, dest=option.key, metavar=_metavar(option), help=text, **several)


def _default_note(option: Option, roles: Sequence[Role]) -> str:
    """[the default], or that of each role: [2048, 512]."""
    defaults = [option.default]
    if option.section is PoolTuning:
        defaults = [getattr(tuning(ServeConfig(), role), option.name) for role in roles]
    texts = [_default_text(option, default) for default in defaults if default is not None]
    return f" [{', '.join(dict.fromkeys(texts))}]" if texts else ""


def _default_text(option: Option, default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if option.name.endswith("_bytes") and isinstance(default, int):
        return f"{default / 2**30:g}GiB"
    if isinstance(default, tuple):
        return ",".join(cast("tuple[str, ...]", default))
    return str(default)


def _parse(parser: Parser, argv: Sequence[str], warn: Callable[[str], None]) -> _Flags:
    """What was given, by key. `--max_model_len` is read as `--max-model-len`.

    Raises SetupError with a line for each flag that is unknown or has a wrong value.
    """
    arguments = [_kebab(argument) for argument in argv]
    _check_names(arguments)
    arguments, unneeded = without_unneeded(arguments, parser.flags())
    known, rest = parser.parse_known_args(arguments)
    rest = [argument for argument in rest if argument not in unneeded]
    takes_model = "--model" in parser.flags() and not hasattr(known, "model")
    if takes_model and rest and not rest[0].startswith("-"):
        known.model = rest.pop(0)  # as in `vllm serve MODEL`
        takes_model = False
    given: dict[str, str | list[list[str]]] = vars(known)
    flags = {
        key: value
        if isinstance(value, str)
        else _one_text(OPTIONS[key].flag, value, may_be_model=takes_model)
        for key, value in given.items()
    }
    faults = [refusal(rest, parser.flags())] if rest else []
    faults += _wrong_values(flags)
    if faults:
        raise SetupError("\n".join(faults))
    for told in unneeded.values():
        warn(told)
    return flags


def _wrong_values(flags: _Flags) -> list[str]:
    faults: list[str] = []
    for key, text in flags.items():
        if key in OPTIONS:
            try:
                _from_text(OPTIONS[key], text, f"{OPTIONS[key].flag} ")
            except SetupError as error:
                faults.append(str(error))
    return faults


def _check_names(arguments: Sequence[str]) -> None:
    """vLLM takes several names there, and the second must not pass for the model."""
    for at, argument in enumerate(arguments):
        names = arguments[at + 1 : at + 3]
        if argument == _NAME_FLAG and len(names) > 1 and not names[1].startswith("-"):
            raise SetupError(
                f"{_NAME_FLAG} {' '.join(names)}: a model has one name only; where {names[1]} is "
                f"the model, name it first, or by --model"
            )


def _one_text(flag: str, groups: Sequence[Sequence[str]], *, may_be_model: bool) -> str:
    """Of a list's flag, which may stand several times, each time with several values."""
    if may_be_model and any(len(group) > 1 for group in groups):
        raise SetupError(
            f"{flag}: the last of its values may be meant as the model; separate them by commas, "
            "or name the model first"
        )
    return ",".join(value for group in groups for value in group)


def _kebab(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _is_for_worker(option: Option) -> bool:
    return option.section in (PoolTuning, ModelOptions, ProcessOptions) and "." not in option.key


def _metavar(option: Option) -> str:
    match option.kind:
        case inspect.LiteralType(values):
            return "{" + ",".join(str(value) for value in values) + "}"
        case inspect.IntType() | inspect.FloatType():
            return "BYTES" if option.name.endswith("_bytes") else "N"
        case _:
            return "TEXT"
