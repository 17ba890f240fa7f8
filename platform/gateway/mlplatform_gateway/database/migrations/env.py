"""Entry point of Alembic: migrates over the connection that `upgrade.upgrade` has opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
