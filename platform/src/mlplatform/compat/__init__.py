"""Private and developer APIs of other libraries, one file per library and part of it.

Nothing else in the package may use such a name. Each file names the version that it was written against, and each name
the reason why the public API does not do. `tests/embedded/compat` asserts every name and signature in seconds, so that
an upgrade shows what has changed before a training does.

These files import nothing of the platform but errors, and their library only inside of functions, unless all of their
importers import it anyway (`ray_train`, `ray_tune`).
"""
