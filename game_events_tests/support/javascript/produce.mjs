// Writes records as a JavaScript producer does: Confluent's serializers register the schema, kafkajs sends.
// Its job is JSON on stdin:
//   {brokers, registry, topic, descriptors: base64 of a FileDescriptorSet,
//    (without brokers, and with a registry `mock://`: nothing is sent, and `schemas` is what was registered, by id)
//    records: [{format: "protobuf", message, value} | {format: "avro" | "json", schema, value}]}; value is JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.CLIENTS}/`);
const { createMutableRegistry, createFileRegistry, fromBinary, fromJson } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");
const sr = require("@confluentinc/schemaregistry");
const { Kafka, logLevel } = require("kafkajs");

const job = JSON.parse(readFileSync(0, "utf8"));
const files = createFileRegistry(fromBinary(FileDescriptorSetSchema, Buffer.from(job.descriptors, "base64")));
const client = sr.SchemaRegistryClient.newClient({ baseURLs: [job.registry], createAxiosDefaults: { proxy: false } });
const latest = { autoRegisterSchemas: false, useLatestVersion: true };
const protobuf = new sr.ProtobufSerializer(client, sr.SerdeType.VALUE, {
  autoRegisterSchemas: true,
  registry: createMutableRegistry(files),
});
const avro = new sr.AvroSerializer(client, sr.SerdeType.VALUE, latest);
const json = new sr.JsonSerializer(client, sr.SerdeType.VALUE, latest);

// A subject for each format: the name strategy is by topic.
async function serialized({ format, message, schema, value }) {
  const subject = `${job.topic}_${format}`;
  if (format === "protobuf") {
    return protobuf.serialize(subject, fromJson(files.getMessage(message), value, { registry: files }));
  }
  await client.register(`${subject}-value`, { schemaType: format.toUpperCase(), schema: JSON.stringify(schema) });
  return (format === "avro" ? avro : json).serialize(subject, value);
}

const messages = [];
for (const record of job.records) {
  messages.push({ value: await serialized(record), partition: 0, headers: { client: "javascript" } });
}
const answer = { sent: 0, values: messages.map((m) => m.value.toString("base64")) };
if (job.brokers) {
  const producer = new Kafka({ clientId: "tests", brokers: job.brokers.split(","), logLevel: logLevel.ERROR }).producer();
  await producer.connect();
  await producer.send({ topic: job.topic, messages });
  await producer.disconnect();
  answer.sent = messages.length;
} else {
  const ids = new Set(messages.map((m) => m.value.readUInt32BE(1)));
  answer.schemas = {};
  for (const id of ids) answer.schemas[id] = (await client.getBySubjectAndId("", id)).schema;
}
console.log(JSON.stringify(answer));
