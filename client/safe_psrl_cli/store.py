"""`safe-psrl store`: what is done to stores as a whole."""

import typer

from safe_psrl_cli import store_backup, store_copy

app = typer.Typer(
    help="""Back up, restore and copy what a service has stored.

    Example: safe-psrl store backup backups/monday --from sqlite:data
    """,
    no_args_is_help=True,
)
app.command("backup")(store_backup.backup)
app.command("restore")(store_backup.restore)
app.command("copy")(store_copy.copy)
