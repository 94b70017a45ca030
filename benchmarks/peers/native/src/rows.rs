//! Rows of bronze and silver as Arrow columns.

use crate::event::Event;
use arrow_array::builder::{BinaryBuilder, Int32Builder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use std::sync::Arc;

/// What Kafka says of a record.
pub struct Record<'a> {
    pub partition: i32,
    pub offset: i64,
    pub time_us: i64,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// Rows that wait to be written; bronze's have the raw key and value, too.
pub struct Rows {
    raw: bool,
    pub count: usize,
    partition: Int32Builder,
    offset: Int64Builder,
    time: TimestampMicrosecondBuilder,
    schema_id: Int64Builder,
    game: StringBuilder,
    gamer: StringBuilder,
    event_time: TimestampMicrosecondBuilder,
    device: StringBuilder,
    custom_0: StringBuilder,
    custom_1: StringBuilder,
    key: BinaryBuilder,
    value: BinaryBuilder,
}

pub fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

pub fn times() -> TimestampMicrosecondBuilder {
    TimestampMicrosecondBuilder::new().with_timezone("UTC")
}

pub fn schema(raw: bool) -> Arc<Schema> {
    let mut columns = vec![
        ("_kafka_partition", DataType::Int32),
        ("_kafka_offset", DataType::Int64),
        ("_kafka_timestamp", time()),
        ("_schema_id", DataType::Int64),
        ("game_name", DataType::Utf8),
        ("gamer_id", DataType::Utf8),
        ("event_timestamp", time()),
        ("device_id", DataType::Utf8),
        ("col_custom_0", DataType::Utf8),
        ("col_custom_1", DataType::Utf8),
    ];
    if raw {
        columns.push(("_kafka_key", DataType::Binary));
        columns.push(("_raw_value", DataType::Binary));
    }
    let fields: Vec<Field> = columns
        .into_iter()
        .map(|(name, kind)| Field::new(name, kind, true))
        .collect();
    Arc::new(Schema::new(fields))
}

impl Rows {
    pub fn new(raw: bool) -> Self {
        Rows {
            raw,
            count: 0,
            partition: Int32Builder::new(),
            offset: Int64Builder::new(),
            time: times(),
            schema_id: Int64Builder::new(),
            game: StringBuilder::new(),
            gamer: StringBuilder::new(),
            event_time: times(),
            device: StringBuilder::new(),
            custom_0: StringBuilder::new(),
            custom_1: StringBuilder::new(),
            key: BinaryBuilder::new(),
            value: BinaryBuilder::new(),
        }
    }

    #[inline]
    pub fn push(&mut self, record: &Record, event: &Event) {
        let value = record.value;
        self.partition.append_value(record.partition);
        self.offset.append_value(record.offset);
        self.time.append_value(record.time_us);
        self.schema_id
            .append_value(i64::from(i32::from_be_bytes([value[1], value[2], value[3], value[4]])));
        self.game.append_value(event.game);
        self.gamer.append_value(event.gamer);
        self.event_time.append_value(event.time_us);
        self.device.append_value(event.device);
        self.custom_0.append_option(event.custom_0);
        self.custom_1.append_option(event.custom_1);
        if self.raw {
            self.key.append_value(record.key);
            self.value.append_value(value);
        }
        self.count += 1;
    }

    /// The rows so far; none are left.
    pub fn take(&mut self) -> RecordBatch {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.partition.finish()),
            Arc::new(self.offset.finish()),
            Arc::new(self.time.finish()),
            Arc::new(self.schema_id.finish()),
            Arc::new(self.game.finish()),
            Arc::new(self.gamer.finish()),
            Arc::new(self.event_time.finish()),
            Arc::new(self.device.finish()),
            Arc::new(self.custom_0.finish()),
            Arc::new(self.custom_1.finish()),
        ];
        if self.raw {
            columns.push(Arc::new(self.key.finish()));
            columns.push(Arc::new(self.value.finish()));
        }
        self.count = 0;
        RecordBatch::try_new(schema(self.raw), columns).unwrap()
    }
}
