"""First revision: the tables of version 0.4, which `upgrade` creates from their classes."""

# With a letter: versions before 0.4 called theirs 0001 to 0011, so that their databases would seem to be known.
revision = "r0001"
down_revision = None


def upgrade() -> None:
    pass
