// A subscriber as npm's `pubsubhubbub` documents it: reader.js MODULES TOPIC HUB
// Without a secret: version 1.0.2 sends one made from it and the topic, checks signatures with the other, and drops all.
"use strict";
const [modules, topic, hub] = process.argv.slice(2);
const pubsub = require(`${modules}/pubsubhubbub`).createServer({ callbackUrl: "" });

pubsub.on("listen", () => {
  pubsub.callbackUrl = `http://127.0.0.1:${pubsub.server.address().port}/`;
  pubsub.subscribe(topic, hub, (error) => { if (error) { console.log("error", String(error)); process.exit(1); } });
});
pubsub.on("denied", (data) => { console.log("denied", data.topic); process.exit(1); });
pubsub.on("subscribe", (data) => console.log("subscribed", data.topic, data.hub));
pubsub.on("feed", (data) => { console.log("feed", JSON.stringify(data.feed.toString())); pubsub.unsubscribe(topic, hub); });
pubsub.on("unsubscribe", () => { console.log("unsubscribed"); });
pubsub.listen(0, "127.0.0.1");
