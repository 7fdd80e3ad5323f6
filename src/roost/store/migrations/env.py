"""Run the steps on the connection, and in the transaction, that `roost.store.migrate` opened."""

from alembic import context

from roost.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,
)
context.run_migrations()
