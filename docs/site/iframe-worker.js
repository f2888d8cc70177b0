// The search of the theme runs in a worker, which browsers refuse to pages opened from files. Here its script
// runs in a hidden frame instead: the same messages go to it and come back.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.src = new URL(source, document.baseURI).href;
          script.onload = done;
          script.onerror = failed;
          inside.document.documentElement.append(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      load(url).then(
        () => {
          this.waiting.forEach((data) => this.deliver(data));
          this.waiting = null;
        },
        () => this.dispatchEvent(new ErrorEvent("error", { filename: String(url) }))
      );
    }
    deliver(data) {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.deliver(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
