"""`psph keys`: make a domain's secret and signing keys, show keys, and say whose signatures count.

Keys live in one folder: `domain.secret`, `NAME.key` (private) and `NAME.pub` (public), and `trusted/NAME.pub` for the
keys of others. All files are readable by their owner alone.
"""

import argparse
import base64
import json
import os
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.protocols.psirp.scope_keys import KeyStep, change
from psirp_stack.authentication.files import load_key_pair, load_public_key, save_key_pair, save_public_key, write_new
from psirp_stack.authentication.keys import KeyFileError, KeyPair, PublicKey
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.grant_files import save_grant
from psirp_stack.control.role_grants import make_grant
from psirp_stack.node.config import NodeConfigError, read_secret
from storage.private import FOLDER_MODE

EXAMPLES = """
examples:
  psph keys setup gate                      everything a domain and its first node need, in one command
  psph keys setup gate --role rendezvous --role topology      and grants of its roles
  psph keys setup other --member            what one more node of the domain needs; copy domain.secret there first
  psph keys new newsroom                    make a key: newsroom.key, newsroom.pub
  psph keys show newsroom                   its hash (what policies name it by) and its public key
  psph keys show newsroom --json
  psph keys trust alice.pub                 signatures made with alice's key count from now on
  psph keys trust alice.pub --name alice-at-work
  psph keys forget alice                    and no longer
  psph keys list                            own and trusted keys
  psph keys seal sealed.toml http://example.com/private/            a gateway seals these topics; --step changes the key
  psph keys grant gate-a rendezvous topology --by domain --to gate-a --out gate-a.grant
                                            let node gate-a have these roles; its key is gate-a, the domain's is domain

The folder is --dir, or $PSPH_KEYS, or ~/.config/psph/keys. Give others the .pub file, never the .key file. A file
that is there is never overwritten.
"""

SECRET_NAME = "domain.secret"  # noqa: S105  (a file's name)
SECRET_BYTES = 32
DOMAIN_NAME = "domain"
GRANT_SUFFIX = ".grant"
USUAL_DAYS = 365
PRIVATE_SUFFIX = ".key"
PUBLIC_SUFFIX = ".pub"
TRUSTED_FOLDER = "trusted"
FOLDER_VARIABLE = "PSPH_KEYS"
GRANTABLE = {role.name.lower(): role for role in ServiceRole if role.name}
MAX_DAYS = 36_500
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """What is shown of a key."""

    name: str
    kind: str
    hash: str
    public_key: str
    file: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Make and keep a domain's secret, and the Ed25519 keys that sign publications and requests."
    parser.epilog = EXAMPLES
    parser.add_argument("--dir", type=Path, help="the folder of the keys")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    setup = verbs.add_parser(
        "setup",
        help="make everything that a domain and a node need",
        description=(
            "Make the domain's secret (domain.secret: who does not know it is not let in), the domain's key\n"
            "(domain.key: it signs grants of roles) and a node's signing key, and say what to write into the node's\n"
            "configuration. What is there already is kept, so it does no harm to run it again."
        ),
    )
    setup.add_argument("name", metavar="NAME", help="the node that signs with the key")
    setup.add_argument(
        "--member", action="store_true", help="the domain exists: its secret must be there, its key is not needed"
    )
    setup.add_argument(
        "--role", action="append", choices=list(GRANTABLE), default=[], help="grant the node this role; may be repeated"
    )
    new = verbs.add_parser("new", help="make a key", description="Make a key. An example: psph keys new newsroom")
    new.add_argument("name", metavar="NAME")
    show = verbs.add_parser("show", help="show one key, own or trusted")
    show.add_argument("name", metavar="NAME")
    trust = verbs.add_parser("trust", help="let the signatures of somebody else's key count")
    trust.add_argument("file", metavar="FILE", type=Path, help="the public key in PEM, as `keys new` writes it")
    trust.add_argument("--name", help="what to call it here (default: the file's name)")
    forget = verbs.add_parser("forget", help="let the signatures of a trusted key count no longer")
    forget.add_argument("name", metavar="NAME")
    grant = verbs.add_parser("grant", help="let a node be rendezvous or topology manager, by the domain's key")
    grant.add_argument("node", metavar="NODE")
    grant.add_argument("roles", metavar="ROLE", nargs="+", choices=list(GRANTABLE), help=" or ".join(GRANTABLE))
    grant.add_argument("--by", metavar="NAME", required=True, help="the domain's key, one of your own")
    grant.add_argument("--to", metavar="NAME", required=True, help="the node's key, own or trusted")
    grant.add_argument("--days", type=int, default=USUAL_DAYS, help="for how long it counts (default: %(default)s)")
    grant.add_argument("--out", type=Path, required=True, help="the file to write: `keys.grant` of the node")
    sealing = verbs.add_parser(
        "seal",
        help="make or change a key with which gateways seal a scope",
        description=(
            "Make a key for publications that no node between gateways may read, or change one without a gap: step\n"
            "next, give the file to all gateways; step switch, give it to all; step drop, give it to all."
        ),
    )
    sealing.add_argument("file", metavar="FILE", type=Path, help="`network.sealed_file` of the gateways")
    sealing.add_argument("what", metavar="PREFIX|SCOPE", help="how names begin, or the identifier of a scope")
    sealing.add_argument("--step", choices=[str(step) for step in KeyStep], help="of changing the key")
    listing = verbs.add_parser("list", help="show all keys")
    for verb in (show, listing):
        verb.add_argument("--json", action="store_true", help="one JSON object a line")
    for verb in verbs.choices.values():
        # Before the verb or behind it.
        verb.add_argument("--dir", type=Path, default=argparse.SUPPRESS, help="the folder of the keys")


def run(args: argparse.Namespace) -> int:
    folder = args.dir or _default_folder()
    try:
        match args.verb:
            case "setup":
                setup(folder, args.name, roles=args.role, member=args.member)
            case "new":
                _print(make(folder, args.name), as_json=False)
            case "show":
                _print(find(folder, args.name), as_json=args.json)
            case "trust":
                _print(trust_key(folder, args.file, args.name), as_json=False)
            case "forget":
                forget_key(folder, args.name)
            case "grant":
                until = grant_roles(folder, args.node, args.roles, args.out, by=args.by, to=args.to, days=args.days)
                print(f"{args.out}: {args.node} may be {' and '.join(args.roles)} until {until:%Y-%m-%d}")
            case "seal":
                print(f"{args.file}: {change(args.file, args.what, args.step and KeyStep(args.step))}")
            case _:
                return _list(folder, as_json=args.json)
    except KeyFileError as error:
        raise CommandError(str(error)) from None
    return 0


def make(folder: Path, name: str) -> KeyDescription:
    _check_name(name)
    _make_folder(folder)
    private, public = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    if public.exists():
        raise KeyFileError(f"{public} is there already and is not overwritten")
    pair = KeyPair.generate()
    save_key_pair(pair, private)
    save_public_key(pair.public, public)
    return _describe(name, "own", pair.public, private)


def setup(folder: Path, name: str, *, roles: Sequence[str], member: bool) -> None:
    """Secret, domain's key and node's key: makes what is missing, checks what is there, says how to use them."""
    _check_name(name)
    if name == DOMAIN_NAME:
        raise CommandError(f"{name!r} is the name of the domain's own key: give the node another one")
    if member and roles:
        raise CommandError(
            "--role takes the domain's key, which a member does not have: use `psph keys grant` where it is"
        )
    secret = folder / SECRET_NAME
    if member and not secret.exists():
        raise CommandError(f"{secret} is not there: copy it from another node of the domain (mode 0600)")
    _make_folder(folder)
    _say_made(secret, made=_make_secret(secret), what="the same at all nodes; who does not know it is not let in")
    if not member:
        what = "signs grants of roles: keep it away from the nodes, give them domain.pub"
        _say_made(folder / f"{DOMAIN_NAME}{PRIVATE_SUFFIX}", made=_make_pair(folder, DOMAIN_NAME), what=what)
    own = folder / f"{name}{PRIVATE_SUFFIX}"
    _say_made(own, made=_make_pair(folder, name), what=f"{name} signs with it; give others {name}{PUBLIC_SUFFIX}")
    trust_key(folder, folder / f"{name}{PUBLIC_SUFFIX}", name)
    lines = ["[domain]", _setting("secret_file", secret)]
    public, grant = folder / f"{DOMAIN_NAME}{PUBLIC_SUFFIX}", folder / f"{name}{GRANT_SUFFIX}"
    if public.exists():
        lines.append(_setting("key", public))
    lines += ["[keys]", _setting("signing", own), _setting("trusted", folder / TRUSTED_FOLDER)]
    if roles and not grant.exists():
        _say_made(
            grant, made=True, what=f"until {grant_roles(folder, name, roles, grant):%Y-%m-%d}: {', '.join(roles)}"
        )
    if grant.exists():
        lines.append(_setting("grant", grant))
    print("\nIn the node's configuration (a gateway's: [node.domain], [node.keys]):")
    print("\n".join(lines))


def _setting(key: str, path: Path) -> str:
    return f"{key} = {json.dumps(str(path.absolute()))}"


def _make_secret(path: Path) -> bool:
    """Whether it was made now; one that is there must be one that a node would take."""
    if not path.exists():
        write_new(path, base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n")
        return True
    try:
        read_secret(path)
    except NodeConfigError as error:
        raise CommandError(str(error)) from None
    return False


def _make_pair(folder: Path, name: str) -> bool:
    private, public = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    if not private.exists():
        make(folder, name)
        return True
    pair = load_key_pair(private)
    if not public.exists():
        save_public_key(pair.public, public)
    return False


def _say_made(path: Path, *, made: bool, what: str) -> None:
    print(f"{path}: {'made' if made else 'was there, kept'} ({what})")


def find(folder: Path, name: str) -> KeyDescription:
    _check_name(name)
    private, public = folder / f"{name}{PRIVATE_SUFFIX}", folder / f"{name}{PUBLIC_SUFFIX}"
    trusted = folder / TRUSTED_FOLDER / f"{name}{PUBLIC_SUFFIX}"
    if private.exists():
        return _describe(name, "own", load_key_pair(private).public, private)
    for kind, path in (("public", public), ("trusted", trusted)):
        if path.exists():
            return _describe(name, kind, load_public_key(path), path)
    raise CommandError(f"no key {name} in {folder}: `psph keys list` shows those that are there")


def trust_key(folder: Path, file: Path, name: str | None) -> KeyDescription:
    name = name or file.name.removesuffix(PUBLIC_SUFFIX)
    _check_name(name)
    key = load_public_key(file)
    place = folder / TRUSTED_FOLDER
    _make_folder(folder)
    _make_folder(place)
    path = place / f"{name}{PUBLIC_SUFFIX}"
    if path.exists() and load_public_key(path) == key:
        return _describe(name, "trusted", key, path)
    save_public_key(key, path)
    return _describe(name, "trusted", key, path)


def forget_key(folder: Path, name: str) -> None:
    _check_name(name)
    path = folder / TRUSTED_FOLDER / f"{name}{PUBLIC_SUFFIX}"
    try:
        path.unlink()
    except FileNotFoundError:
        raise CommandError(f"no trusted key {name} in {folder}") from None
    except OSError as error:
        raise CommandError(f"cannot remove {path}: {error.strerror}") from None


def grant_roles(
    folder: Path,
    node: str,
    roles: Sequence[str],
    out: Path,
    *,
    by: str = DOMAIN_NAME,
    to: str | None = None,
    days: int = USUAL_DAYS,
) -> datetime:
    """Write a grant; says until when it counts."""
    if not 0 < days <= MAX_DAYS:
        raise CommandError(f"--days is {days}: expected 1 to {MAX_DAYS}")
    until = datetime.now(UTC) + timedelta(days=days)
    key = PublicKey(bytes.fromhex(find(folder, to or node).public_key))
    bits = sum(int(GRANTABLE[role]) for role in set(roles))
    _check_name(by)
    _check_name(node)
    domain = load_key_pair(folder / f"{by}{PRIVATE_SUFFIX}")
    save_grant(make_grant(domain, node, bits, key, int(until.timestamp() * 1000)), out)
    return until


def _list(folder: Path, *, as_json: bool) -> int:
    """Every key; one that cannot be read gives a line on stderr and exit code 1."""
    code = 0
    private = sorted(folder.glob(f"*{PRIVATE_SUFFIX}"))
    own = {path.stem for path in private}
    public = [path for path in sorted(folder.glob(f"*{PUBLIC_SUFFIX}")) if path.stem not in own]
    for path in [*private, *public, *sorted((folder / TRUSTED_FOLDER).glob(f"*{PUBLIC_SUFFIX}"))]:
        try:
            if path.suffix == PRIVATE_SUFFIX:
                found = _describe(path.stem, "own", load_key_pair(path).public, path)
            else:
                kind = "trusted" if path.parent.name == TRUSTED_FOLDER else "public"
                found = _describe(path.stem, kind, load_public_key(path), path)
        except KeyFileError as error:
            print(f"psph keys: {error}", file=sys.stderr)
            code = 1
            continue
        print(json.dumps(asdict(found)) if as_json else f"{found.kind:<8} {found.hash}  {found.name}")
    return code


def _describe(name: str, kind: str, key: PublicKey, path: Path) -> KeyDescription:
    return KeyDescription(name, kind, key.hash.hex(), key.raw.hex(), str(path))


def _print(description: KeyDescription, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(description)))
        return
    print(
        f"{description.name}\n"
        f"  kind        {description.kind}\n"
        f"  hash        {description.hash}\n"
        f"  public key  {description.public_key}\n"
        f"  file        {description.file}"
    )


def _check_name(name: str) -> None:
    if not NAME_PATTERN.match(name):
        raise CommandError(f"{name[:80]!r} is no name for a key: letters, digits, '.', '_' and '-', at most 64")


def _default_folder() -> Path:
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "psph" / "keys"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make the folder {folder}: {error.strerror}") from None
