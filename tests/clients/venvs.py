"""Popular clients, each in a virtual environment of its own: they pull each other's versions."""

import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / ".venv-clients"
REQUIREMENTS = {
    "openai": "openai==3.57.0",
    "litellm": "litellm==1.110.2",
    "langchain-openai": "langchain-openai==1.7.4",
    "instructor": "instructor==1.17.0",
    "llm": "llm==0.36",
}
INSTALL_S = 600.0


class CannotInstall(Exception):
    """In pip's own words: most often there is no network."""


def python_of(name: str) -> Path:
    """The Python of that client's environment, which is made where it is not there as it is wanted
    here. Raises CannotInstall."""
    home = HOME / name
    python, stamp = home / "bin" / "python", home / "stamp"
    wanted = f"{REQUIREMENTS[name]} {sys.version}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    venv.create(home, clear=True, with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", REQUIREMENTS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise CannotInstall(done.stderr.strip().splitlines()[-1])
    stamp.write_text(wanted)
    return python
