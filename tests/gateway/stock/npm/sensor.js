// A client as npm's `mqtt` documents it: sensor.js MODULES URL VERSION. Says what it was granted, heard and refused.
"use strict";
const [modules, url, given] = process.argv.slice(2);
const mqtt = require(`${modules}/mqtt`);
const version = Number(given);
const say = (what) => console.log(JSON.stringify(what));

async function main() {
  const client = await mqtt.connectAsync(url, {
    protocolVersion: version, protocolId: version === 3 ? "MQIsdp" : "MQTT", clientId: `js-${version}`, reconnectPeriod: 0,
  }, false);
  const heard = new Promise((resolve) => {
    let count = 0;
    client.on("message", (topic, payload, packet) => {
      const { contentType = "", userProperties = {} } = packet.properties || {};
      say({ topic, payload: payload.toString(), qos: packet.qos, contentType, userProperties: { ...userProperties } });
      count += 1;
      if (count === 3) resolve();
    });
  });
  say({ granted: (await client.subscribeAsync(`js/${version}/#`, { qos: 2 })).map((one) => one.qos) });
  const properties = version === 5 ? { contentType: "text/plain", userProperties: { unit: "C" } } : undefined;
  for (const qos of [0, 1, 2]) await client.publishAsync(`js/${version}/${qos}`, `${qos} degrees`, { qos, properties });
  await heard;
  const refused = await client.publishAsync("$SYS/mine", "x", { qos: 1 }).then(() => 0, (error) => error.code);
  say({ refused });
  await client.endAsync();
  say({ ended: true });
}

main().catch((error) => { say({ error: String(error) }); process.exit(1); });
