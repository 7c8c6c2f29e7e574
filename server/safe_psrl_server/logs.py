"""Structured logs on standard error: one line for each event of the server's and the agents' lives, none for a step."""

import logging
import sys

import structlog


def set_up_logs(style: str, level: str) -> None:
    """`style` is "console" for people or "json" for machines."""
    renderer: structlog.typing.Processor
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class _LibraryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def log_libraries() -> None:
    """Write warnings of libraries, which use `logging`, in the same style. For a process that is the service's own."""
    logging.basicConfig(handlers=[_LibraryHandler()])
