"""An index in the browser: `grainline serve INDEX`, a page and a JSON interface. Needs the extra `serve`.

engine  The index behind the server, with images and texts to try; searched in batches by one thread.
guard   Checks before every route, and what a client may cost; images decoded in processes of their own.
schema  Requests and responses of the JSON interface.
server  `grainline serve`: the routes, and the uvicorn server with its end.
"""
