"""Private and developer APIs of other libraries, one file per library or part of one.

Nothing else in the package may use such a name. Each file names the version that it was written against, and gives for
each name the reason why the public API does not suffice. `tests/embedded/compat` asserts every name and signature in
seconds, so that an upgrade's changes show up before a training fails.

These files import little of the platform, and their library only inside functions, unless all of their importers
import it anyway (`ray_train`, `ray_tune`). `patches` replaces functions, for all of them.
"""
