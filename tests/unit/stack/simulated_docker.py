"""A program that answers as `docker` does, for one stack whose state is a JSON file ($STATE).

Images are texts, a database is a list of rows, and `compose` reads the services from the checkout that is named. If the
words of a command match $BREAK, the command takes effect and then fails, or kills its caller ($KILL), both once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

STATE = Path(os.environ["STATE"])
WORDS = sys.argv[1:]
TEXT = " ".join(WORDS)


def fail(reason: str) -> None:
    print(reason, file=sys.stderr)
    sys.exit(1)


def settings() -> dict[str, str]:
    text = Path(WORDS[WORDS.index("--env-file") + 1]).read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def services() -> dict[str, str]:
    """Services of the checkout's compose file, with their images."""
    text = Path(WORDS[WORDS.index("--file") + 1]).read_text()
    return json.loads(text.replace("$VERSION", settings()["MLPLATFORM_VERSION"]))


def start(state: dict, names: list[str]) -> None:
    for name in names:
        image = services()[name]
        if image not in state["images"]:
            fail(f"no image {image}")
        state["containers"][name] = {"name": image, "image": state["images"][image], "running": True}
    if "gateway" in names:
        state["databases"]["gateway"].append(f"job of {settings()['MLPLATFORM_VERSION']}")


def composed(state: dict) -> None:
    words = WORDS[5:]
    while words[0] == "--profile":
        words = words[2:]
    names = [word for word in words[1:] if word in services()]
    match words[0]:
        case "config":
            print(json.dumps({"services": {name: {"image": image} for name, image in services().items()}}))
        case "ps":
            print("\n".join(name for name, entry in state["containers"].items() if entry["running"]))
        case "stop":
            stop(state, names)
        case "down":
            state["containers"] = {}
        case "up":
            start(state, names or list(services()))
        case "run":
            run_once(state, names[0], words)


def stop(state: dict, names: list[str]) -> None:
    for name in names:
        state["containers"][name]["running"] = False


def run_once(state: dict, name: str, words: list[str]) -> None:
    if services()[name] not in state["images"]:
        fail(f"no image {services()[name]}")
    if name == "mlflow-migrate":
        state["databases"]["mlflow"].append("migrated")
    elif name == "gateway":
        state["databases"]["gateway"].append("migrated")
        if os.environ.get("LOSES"):
            state["databases"]["gateway"].clear()


def in_postgres(state: dict) -> None:
    if not state["containers"].get("postgres", {}).get("running"):
        fail("postgres does not run")
    program, last = WORDS[3], WORDS[-1]
    if program == "pg_dump":
        print(json.dumps({last: state["databases"][last]}))
    elif program == "pg_restore":
        state["databases"].update(json.load(sys.stdin))
    elif "datname = " in last or "to_regclass" in last:
        print(1)
    elif "count(*)" in last:
        database = next(word for word in WORDS if word.startswith("--dbname=")).partition("=")[2]
        print(len(state["databases"][database]))
    else:
        print("\n".join(state["databases"]))


def about_host() -> None:
    match WORDS:
        case ["version", *_]:
            print("28.0.0")
        case ["compose", "version", *_]:
            print("2.40.0")
        case ["info", *_]:
            print('{"DockerRootDir": "/", "Runtimes": {}}')


def about_images(images: dict[str, str]) -> None:
    match WORDS:
        case ["tag", _, name] if "@" in name:
            fail("refusing to create a tag with a digest reference")
        case ["tag", image, name]:
            images[name] = images.get(image) or next(found for found in images.values() if found == image)
        case ["image", "ls", *_]:
            ours = re.compile(r"mlplatform-\w+" + re.escape(WORDS[3].partition("*")[2]))
            print("\n".join(f"{name} {image}" for name, image in images.items() if ours.fullmatch(name)))
        case ["image", "inspect", *_, name]:
            print(images.get(name, ""))
        case ["image", "rm", name]:
            images.pop(name, None)
        case ["build", version, content]:
            images |= {f"mlplatform-{name}:{version}": f"{name}-{content}" for name in ("platform", "ray", "minio")}


def about_containers(state: dict) -> None:
    match WORDS:
        case ["ps", *_]:
            print("\n".join(state["containers"]))
        case ["inspect", *names]:
            print(json.dumps([described(name, state["containers"][name]) for name in names]))
        case ["stop", *names]:
            stop(state, names)
        case ["exec", *_]:
            in_postgres(state)
        case ["compose", "--env-file", *_]:
            composed(state)


def described(name: str, entry: dict) -> dict:
    config = {"Image": entry["name"], "Labels": {"com.docker.compose.service": name}}
    return {"Id": name, "Image": entry["image"], "State": {"Running": entry["running"]}, "Config": config}


def breaks(variable: str) -> bool:
    """True the first time that the words match."""
    pattern, mark = os.environ.get(variable), STATE.with_name(f"{variable}-happened")
    if not pattern or mark.exists() or not re.search(pattern, TEXT):
        return False
    mark.touch()
    return True


if __name__ == "__main__":
    content = json.loads(STATE.read_text())
    about_host()
    about_images(content["images"])
    about_containers(content)
    content["calls"].append(TEXT)
    STATE.write_text(json.dumps(content))
    if breaks("KILL"):
        os.kill(os.getppid(), signal.SIGKILL)
    if breaks("BREAK"):
        fail("it broke")
