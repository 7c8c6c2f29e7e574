"""The operator's web page: a client of the service, in its own process.

fleet.py      what is known of every agent: pure, folds what the service says
watching.py   the one connection that feeds it
*_page.py     what a browser shows of it
"""
