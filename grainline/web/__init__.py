"""An index in the browser: `grainline serve INDEX`, a page and a JSON interface. Needs the extra `serve`."""
