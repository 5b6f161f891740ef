"""
Show a server's products on a web page of the admin port; it reads and changes nothing.

    with Console(sources, sign_in=SignIn(secret)) as console:
        response = console.respond(request)
"""

from tollgate.console.console_pages import Console, ConsoleSources
from tollgate.console.sign_in import SignIn, read_console_secret

__all__ = ["Console", "ConsoleSources", "SignIn", "read_console_secret"]
