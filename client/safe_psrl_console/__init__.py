"""The operator's web console: a client of the service, in its own process.

fleet.py        the state of every agent, folded from the service's replies: no I/O
connection.py   the one connection that feeds it
same_origin.py  which requests are accepted
*_page.py       the pages
"""
