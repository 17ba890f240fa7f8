"""Entry point of Alembic: migrates over the connection that `upgrade.upgrade` has opened."""

from alembic import context

from mlplatform.gateway.audit import schema as audit  # noqa: F401 - registers the table with Base
from mlplatform.gateway.database.base import Base
from mlplatform.gateway.jobs import schema as jobs  # noqa: F401 - registers the tables with Base
from mlplatform.gateway.models import digests as models  # noqa: F401
from mlplatform.gateway.people import schema as people  # noqa: F401
from mlplatform.gateway.usage import schema as usage  # noqa: F401

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
