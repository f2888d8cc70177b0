"""An index in the browser: `grainline serve INDEX`, a page and a JSON interface. Needs the extra `serve`.

app     The routes: the page, the JSON interface, pictures.
engine  The index behind the server: opened anew when it changes on disk, asked in batches by one thread.
guard   What stands before every route: who may ask, how much may be sent, and what every answer carries.
limits  What the server accepts and holds at most, so that no request can take it down.
schema  What the JSON interface takes and gives, images included.
serve   From a folder to a server that listens: what `grainline serve` does.
server  The program that listens, and its connections: places for them, time limits, an orderly end.
"""
