"""An index in the browser: `grainline serve INDEX`, a page and a JSON interface. Needs the extra `serve`.

app          The routes: the page, the JSON interface, images.
decoders  Images decoded in processes of their own, with a share for each address and a time limit.
engine    The index behind the server: reopened when it changes on disk, searched in batches by one thread.
guard      Checks before every route: Host and origin, limits per client, response headers.
limits    Limits of the server: sizes, times, numbers of requests.
schema    Requests and responses of the JSON interface.
start      What the page opens with: images of the index, and texts to try.
server    `grainline serve`: the uvicorn server with limits of connections and times, and a graceful end.
"""
