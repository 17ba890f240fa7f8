"""Alembic's entry: it migrates over the connection that `migrate.upgrade` has opened."""

from alembic import context

from mlplatform.gateway.schema import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
