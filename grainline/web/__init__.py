"""An index in the browser: `grainline serve INDEX`, a page and a JSON interface. Needs the extra `serve`.

app          The routes: the page, the JSON interface, images.
decoders  Images decoded in processes of their own, with a share for each address and a time limit.
engine    The index behind the server, with images and texts to try; searched in batches by one thread.
guard      Checks before every route: Host and origin, limits per client, response headers.
schema    Requests and responses of the JSON interface.
server    `grainline serve`: the uvicorn server, with a limit on the time of headers, and its end.
"""
