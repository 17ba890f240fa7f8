"""Beginning of each worker process: warm start's, with the secrets of the job's owner. Seen in Ray 2.60.0.

`ray_commands.prepare_node` installs it.
"""

from __future__ import annotations

import sys

# As a script, this file's folder is first on the path, and some of its modules are named like packages.
if __name__ == "__main__":
    del sys.path[0]

from mlplatform.secrets import secret_folder
from mlplatform_warm.ray.setup_worker import CONTEXT, LANGUAGE, main

__all__ = ["CONTEXT", "LANGUAGE"]

if __name__ == "__main__":
    main(sys.argv[1:], secret_folder.provide)
