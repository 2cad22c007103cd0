/* A page that was opened from disk may start no worker, so search would not work there. This runs the
   worker's script in a hidden frame of the page instead, with the same messages in both directions. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.tell(data);
      // Scripts of the index arrive one after another; what asks for them may wait for a promise.
      this.inside.importScripts = (...files) =>
        files.reduce((before, file) => before.then(() => this.load(file)), Promise.resolve());
      // The first message sets the search up; what follows waits for its answer.
      this.loaded = this.load(address);
    }
    load(file) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(file, location.href).href;
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.appendChild(script);
      });
    }
    tell(data) {
      this.ready = true;
      this.waiting.splice(0).forEach((one) => this.give(one));
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    give(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.ready) this.give(data);
      else if (this.begun) this.waiting.push(data);
      else {
        this.begun = true;
        this.loaded.then(() => this.give(data));
      }
    }
    terminate() {}
  };
}
