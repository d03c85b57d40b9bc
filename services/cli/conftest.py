from typer.testing import CliRunner, Result

from services.cli.main import app


def hindcast(*arguments: object, columns: int = 80, catch: bool = True) -> Result:
    """Run a command line; what it raises is in the result, or is raised where it is not to be caught."""
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)}, catch_exceptions=catch
    )
